/* SPDX-License-Identifier: Apache-2.0 */
/* The move to a larger control block.  One publisher that must not drop, NR reliable subscribers.
 * Fixed design: the link page (cursor = global message number, sleeping flag, hold words) belongs to the LINK, not to
 * the block; a hold word names a message number, so the lease page does not depend on the number of slots.
 * Block 0 has N0 slots, block 1 has N1.  The daemon announces block 1 (announced) before the head of block 0 is marked
 * (MV, DLX_SHM_MOVED in the code), which says that it is the last there. The mark rings nobody: the next message does.
 * A newcomer may be given block 0 or, once announced, block 1.
 *
 * mutants: -DNORECHECK  before it polls the subscriber looks at head again but not at its mark         must fail
 *          -DATTACHGATE only links that have attached to block 1 gate/hold slots of block 1 (flags, cursors and
 *                       lease words live in a per-block page, as a first design had it)          must fail
 *          -DNOBASE     the new block's head starts at 0 instead of n                                    must fail
 */
#ifndef NR
#define NR 2
#endif
#ifndef N0
#define N0 2
#endif
#ifndef N1
#define N1 3
#endif
#define NT (N0 + N1)
#ifndef H
#define H 1
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef B
#define B 1        /* hold words per link */
#endif
#define MV 64
#define UNSET 255
#define CLOSED 254
#define BASE(b) ((b) * N0)
#define NSL(b) ((b) == 0 -> N0 : N1)
#define RINGI(b, n) (BASE(b) + ((n) % NSL(b)))

byte head[2], ring[NT], gen[NT], payload[NT]; bool blocked;   /* publisher (two blocks side by side) */
bool announced; byte epoch; bool joined[NR]; byte hj[NR];             /* daemon */
byte hold[NR * B], cursor[NR]; bool sleeping[NR], inblk1[NR];        /* subscribers */
bool gone[NR], bellP, bellS[NR];
byte seen, slotseq[NT]; bool freeslot[NT], known[NR], noted[NR];

inline read_membership() {
  if :: epoch != seen -> atomic { seen = epoch; r = 0; do :: r == NR -> break :: r < NR -> known[r] = joined[r]; r++ od }
     :: else -> skip fi
}
#ifdef ATTACHGATE
#define COUNTS(r, i) (known[r] && !gone[r] && ((i) < N0 || inblk1[r]))
#else
#define COUNTS(r, i) (known[r] && !gone[r])
#endif
inline pass() {
  read_membership();
  i = 0;
  do :: i == NT -> break
     :: i < NT ->
        if :: (!freeslot[i] && gen[i] != 0 && slotseq[i] + H <= top) ->
              ok = true; r = 0;
              do :: r == NR -> break
                 :: r < NR -> if :: COUNTS(r, i) -> c = cursor[r]; if :: (c == UNSET || c < slotseq[i]) -> ok = false :: else -> skip fi :: else -> skip fi; r++
              od;
              if :: ok -> gen[i] = 0 :: else -> skip fi
           :: else -> skip
        fi; i++
  od;
  read_membership();
  i = 0;
  do :: i == NT -> break
     :: i < NT ->
        if :: (!freeslot[i] && gen[i] == 0) ->
              ok = true; r = 0;
              do :: r == NR -> break
                 :: r < NR -> if :: COUNTS(r, i) && hold[r * B] == slotseq[i] -> ok = false :: else -> skip fi;
#if B > 1
                              if :: COUNTS(r, i) && hold[r * B + 1] == slotseq[i] -> ok = false :: else -> skip fi;
#endif
                              r++
              od;
              if :: ok -> freeslot[i] = true :: else -> skip fi
           :: else -> skip
        fi; i++
  od;
  findfree()
}
inline findfree() { d_step { ok = false; c = 0; r = 0; s = NT; i = BASE(blk); do :: i == BASE(blk) + NSL(blk) -> break :: i < BASE(blk) + NSL(blk) && freeslot[i] -> s = i; i = BASE(blk) + NSL(blk) :: i < BASE(blk) + NSL(blk) && !freeslot[i] -> i++ od; i = 0 } }
#define NG(x) (known[x] && gone[x] && !noted[x])
#if NR > 1
#define NEWGONE (NG(0) || NG(1))
#else
#define NEWGONE NG(0)
#endif
inline ringall() { r = 0; do :: r == NR -> break :: r < NR -> if :: (known[r] && sleeping[r]) -> bellS[r] = true :: else -> skip fi; r++ od; r = 0 }

proctype publisher() {
  byte s, seq, i, r, c, blk, top; bool ok;
  seq = 1;
  do
  :: seq > LAST -> break
  :: else ->
     findfree();
     if :: s < NT -> skip
        :: else ->
           pass();
           if :: s < NT -> skip
              :: else -> blocked = true;
                 do :: pass();
                       if :: s < NT -> break
                          :: else -> atomic { (bellP || NEWGONE) -> bellP = false; r = 0; do :: r == NR -> break :: r < NR -> if :: known[r] && gone[r] -> noted[r] = true :: else -> skip fi; r++ od; r = 0 }
                       fi
                 od; blocked = false
           fi
     fi;
     freeslot[s] = false; slotseq[s] = seq; payload[s] = 0; payload[s] = seq;
     gen[s] = seq; ring[RINGI(blk, seq)] = s; head[blk] = seq; top = seq;
     read_membership(); ringall();
     seq++; s = 0;
     if :: blk == 0 && seq > 1 && seq <= LAST ->       /* between two messages: move */
#ifndef NOBASE
           head[1] = top;
#endif
           announced = true;                           /* daemon has block 1 and offers it */
           head[0] = top + MV; blk = 1
        :: skip
     fi
  od
}
inline ringP() { if :: blocked -> bellP = true :: else -> skip fi }

proctype subscriber(byte me) {
  byte h, n, s, cur, b; bool mv;
  atomic { joined[me] = true; epoch++; b = 0; if :: announced -> b = 1 :: skip fi; hj[me] = ((head[0] % MV) > head[1] -> (head[0] % MV) : head[1]) }
  inblk1[me] = b;
  h = head[b] % MV;
  if :: h >= H && b == 0 -> cur = h - H :: h < H -> cur = 0 :: cur = h fi;
  cursor[me] = cur; ringP();
  do
  :: cur == LAST -> break
  :: else ->
     d_step { h = head[b]; mv = (h >= MV); h = h % MV }
     if
     :: h == cur ->
        if
        :: mv -> b = 1; inblk1[me] = true
        :: else ->
           sleeping[me] = true;
           if
#ifdef NORECHECK
           :: head[b] % MV == cur ->
#else
           :: head[b] == cur ->
#endif
              atomic { bellS[me] -> bellS[me] = false }
           :: else -> skip
           fi;
           sleeping[me] = false
        fi
     :: else ->
        n = cur + 1; s = ring[RINGI(b, n)];
        hold[me * B] = n;
        if
        :: gen[s] != n -> assert(n <= hj[me]); hold[me * B] = 0; cur = n; cursor[me] = n; ringP()
        :: else ->
           assert(payload[s] == n);
           cur = n; cursor[me] = n;
           if :: skip :: me == 0 -> gone[me] = true; goto out fi;
           assert(payload[s] == n);
           hold[me * B] = 0; ringP()
        fi
     fi; h = 0; n = 0; s = 0; mv = false
  od;
out: skip
}

init { byte i;
  atomic { i = 0; do :: i == NT -> break :: i < NT -> freeslot[i] = true; i++ od;
    i = 0; do :: i == NR -> break :: i < NR -> cursor[i] = UNSET; i++ od; i = 0;
    run publisher(); do :: i == NR -> break :: i < NR -> run subscriber(i); i++ od } }
