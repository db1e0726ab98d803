/* SPDX-License-Identifier: Apache-2.0 */
/* Work queue: each message goes to one worker; redelivered if that worker dies.  NW workers with a link each.
 * default: per-link ring and cursor; `done' word per link written by the worker AFTER it has
 * processed; a block is free
 *          only when its message is done; a dead worker's undone messages are put on another link's ring (same block,
 *          same number, no new gen), and before that nothing of it is freed.
 * -DASWRITTEN1  every reliable link's cursor gates every message, only the addressee is rung     must fail (deadlock)
 * -DASWRITTEN2  a lease ends with its holder, cursor passed at take                               must fail
 * (lost) */
#define NW 2
#ifndef NS
#define NS 2
#endif
#ifndef LAST
#define LAST 4
#endif
byte q[NW * 8], qh[NW];            /* publisher: per-link ring of message numbers, its head */
byte qc[NW], dn[NW * 8];           /* worker: its cursor, done mark per entry */
bool gone[NW], sleeping[NW], bell[NW], bellP, blocked, fin;
byte processed[LAST + 1];
byte own[NS], nof[NS], pos[NS]; bool used[NS], skipc[NW];
byte lastall; byte mcur[NW];

inline give(sl) { d_step { w = (gone[0] -> 1 : (gone[1] -> 0 : nof[sl] % 2)); own[sl] = w; pos[sl] = qh[w] };
   q[own[sl] * 8 + pos[sl]] = nof[sl]; qh[own[sl]] = pos[sl] + 1; if :: sleeping[own[sl]] -> bell[own[sl]] = true :: else -> skip fi }
inline scan() {
   i = 0; fr = NS; left = 0;
   do :: i == NS -> break
      :: i < NS ->
         if :: used[i] ->
               w = own[i];
#ifdef ASWRITTEN2
               if :: gone[w] && qc[w] > pos[i] -> used[i] = false
                  :: gone[w] && qc[w] <= pos[i] -> give(i)
                  :: !gone[w] && dn[w * 8 + pos[i]] -> used[i] = false
                  :: else -> skip fi
#else
               gw = gone[w];                     /* death first, then done: done written before death counts */
               if :: dn[w * 8 + pos[i]] ->
#ifdef ASWRITTEN1
                     if :: (gone[1 - w] || mcur[1 - w] >= nof[i]) -> used[i] = false :: else -> skip fi
#else
                     used[i] = false
#endif
                  :: !dn[w * 8 + pos[i]] && gw -> give(i)
                  :: else -> skip fi
#endif
            :: else -> skip fi;
         if :: !used[i] -> fr = i :: else -> left++ fi; i++
   od }
proctype pub() { byte n, i, w, fr, left; bool gw; n = 1;
  do
  :: n > LAST && left == 0 && fr != NS -> break
  :: else ->
     scan();
     if :: n <= LAST && fr < NS -> used[fr] = true; nof[fr] = n; give(fr); n++; left++
        :: n > LAST && left == 0 -> break
        :: else -> blocked = true; scan();
           if :: (n <= LAST && fr < NS) || (n > LAST && left == 0) -> skip
              :: else -> atomic { bellP -> bellP = false } fi; blocked = false
     fi
  od; fin = true; bell[0] = true; bell[1] = true }
inline ringP() { if :: blocked -> bellP = true :: else -> skip fi }
proctype worker(byte me) { byte n, c;
  do
  :: qh[me] != c ->
     n = q[me * 8 + c]; qc[me] = c + 1; mcur[me] = n; ringP();
     if :: me == 0 -> atomic { gone[me] = true; bellP = true }; goto out :: skip fi;
     atomic { processed[n]++ };
     if :: me == 0 -> atomic { gone[me] = true; bellP = true }; goto out :: skip fi;
     dn[me * 8 + c] = 1; ringP(); c++
  :: qh[me] == c ->
     sleeping[me] = true;
     if :: qh[me] == c && !fin -> atomic { bell[me] -> bell[me] = false } :: else -> skip fi;
     sleeping[me] = false;
     if :: fin && qh[me] == c -> break :: else -> skip fi
  od;
  out: skip }
proctype check() { byte i; fin; i = 1; do :: i > LAST -> break :: i <= LAST -> assert(processed[i] >= 1); i++ od }
init { atomic { run pub(); run worker(0); run worker(1); run check() } }
