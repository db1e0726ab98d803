/* SPDX-License-Identifier: Apache-2.0 */
/* Re-publishing a received tensor: A publishes, M takes and forwards on its own topic (block B), C
 * takes from M.
 * M may die at any step.  A counts M's leases until M's link is dead.
 *   default       link A-M is dead only when M is dead AND every holder of a dup of M's link end ("lifeline") closed it;
 *                 C got the dup when it attached to B, before it could take.  M's lease words stay as M left them.
 *   -DASWRITTEN   pidfd or M's own hang-up ends M's leases at once              must fail
 *   -DLATE        C may attach after M died (retained by the daemon, no lifeline) must fail
 *   -DEARLYCLR    M clears its lease at A before it has retired and scanned its own block must
 * fail */
#ifndef NA
#define NA 3
#endif
#ifndef NB
#define NB 2
#endif
#ifndef LAST
#define LAST 5
#endif
#define H 1
byte head, ring[NA], gen[NA], payload[NA];
byte leaseM[NA];
byte headB, ringB[NB], genB[NB], recS[NB], recN[NB];
byte leaseC[NB]; bool deadM, tokC, cdone, cknown;
byte slotseq[NA]; bool freeA[NA];

#ifdef ASWRITTEN
#define LINKDEAD (deadM)
#else
#define LINKDEAD (deadM && !tokC)
#endif
proctype A() { byte s, seq, i; seq = 1;
  do
  :: seq > LAST -> break
  :: else ->
     s = NA;
     do
     :: s < NA -> break
     :: else ->
        d_step { i = 0; do :: i == NA -> break :: i < NA && freeA[i] -> s = i; i = NA :: i < NA && !freeA[i] -> i++ od }
        if :: s < NA -> skip
           :: else ->
              i = 0; do :: i == NA -> break :: i < NA -> if :: (!freeA[i] && slotseq[i] + H <= head) -> gen[i] = 0 :: else -> skip fi; i++ od;
              i = 0; do :: i == NA -> break :: i < NA -> if :: (!freeA[i] && gen[i] == 0 && (LINKDEAD || leaseM[i] == 0)) -> freeA[i] = true :: else -> skip fi; i++ od
        fi
     od;
     freeA[s] = false; slotseq[s] = seq; payload[s] = 0; payload[s] = seq; gen[s] = seq; ring[seq % NA] = s; head = seq; seq++
  od }
proctype M() { byte h, s, cur, m, i, b; bool fB[NB]; m = 1; i = 0; do :: i == NB -> break :: i < NB -> fB[i] = true; i++ od;
  do
  :: m > LAST -> break
  :: true -> deadM = true; goto out
  :: head != cur ->
     h = head; s = ring[h % NA]; leaseM[s] = h;
     if :: gen[s] != h -> leaseM[s] = 0
        :: else ->
           cur = h;
           /* find a block of B; reclaim: retire, scan C, then drop the upstream lease */
           b = NB;
           do :: b < NB -> break
              :: else ->
                 if :: true -> deadM = true; goto out :: skip fi;
                 i = 0;
                 do :: i == NB -> break
                    :: i < NB && fB[i] -> b = i; i = NB
                    :: i < NB && !fB[i] ->
                       if :: genB[i] != headB || headB == 0 ->
#ifdef EARLYCLR
                             leaseM[recS[i]] = 0;
#endif
                             genB[i] = 0;
                             if :: (leaseC[i] == 0) ->
#ifndef EARLYCLR
                                   leaseM[recS[i]] = 0;
#endif
                                   fB[i] = true
                                :: else -> skip fi
                          :: else -> skip fi; i++
                 od
           od;
           fB[b] = false; recS[b] = s; recN[b] = h;
           genB[b] = m; ringB[m % NB] = b; headB = m; m++; b = 0
     fi; h = 0; s = 0
  od;
out: skip }
proctype C() { byte h, b, s, n, cur;
#ifdef LATE
  atomic { if :: !deadM -> tokC = true :: deadM -> skip fi }
#endif
  do
  :: headB != cur ->
     h = headB; b = ringB[h % NB]; leaseC[b] = h;
     if :: genB[b] != h -> leaseC[b] = 0
        :: else -> s = recS[b]; n = recN[b]; cur = h;
           assert(payload[s] == n);
           assert(payload[s] == n);
           leaseC[b] = 0
     fi; h = 0; b = 0; s = 0; n = 0
  :: deadM && headB == cur -> tokC = false; break
  :: cur == LAST -> break
  :: true -> tokC = false; break                    /* C leaves */
  od }
init { byte i; atomic { i = 0; do :: i == NA -> break :: i < NA -> freeA[i] = true; i++ od;
#ifndef LATE
  tokC = true;
#endif
  run A(); run M(); run C() } }
