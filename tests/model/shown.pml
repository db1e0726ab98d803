/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher that retains its newest message, whose daemon ends, and the daemons after it: each
 * may show the control block, which the publisher still writes, to NR readers. The publisher gets
 * none of their hold words. It is told of them by the kernel alone: its daemon's id is cleared when
 * that ends, and whoever maps the block through a later daemon has a lock on it, which the daemon
 * took before and which goes with the mapping. NB payloads.
 *
 * Claims: what a reader has taken, nobody writes to, until it lets go; there is no message that a
 * reader takes torn. The publisher publishes everything, whether there is a daemon or not, as soon
 * as no reader has the block mapped.
 *
 * mutants: -DCHECKFIRST the publisher looks for locks, then marks its messages    must fail
 *          -DNOLOOK     it does not look for locks                                must fail
 *          -DLOCKLATE   the block is handed out before it is locked               must fail
 *          -DLOCKED     the daemon, not the mapping, has the lock                 must fail
 *          -DCLEARLATE  the next daemon serves before the id is cleared           must fail
 *          -DUNMAPFIRST a reader unmaps the block before it lets go               must fail
 *          -DALONE      what was there when the daemon ended is never freed, and readers take nothing newer: must fail,
 *                       as the publisher stands still with all its memory in these messages
 */
#ifndef NR
#define NR 1
#endif
#ifndef NB
#define NB 2
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef ND
#define ND 3 /* daemons, one after the other */
#endif
#define GONE 100

byte gen[NB], payload[NB];             /* of the message whose payload it is; GONE + n: retired */
byte alone;
bool vouched = true, up = true, moved;
byte g = 1;                            /* the present daemon, or the last one */
bool locked[NR], open[NR], gone_away[NR], over[NR];

#ifdef ALONE
#define MAY_TAKE (alone == 0 || alone > n)
#else
#define MAY_TAKE true
#endif
#if NR > 1
#define IS_LOCKED (locked[0] || locked[1])
#else
#define IS_LOCKED locked[0]
#endif
#ifdef ALONE
#define MAY_FREE (vouched || (alone != 0 && gen[b] - GONE >= alone))
#else
#ifdef NOLOOK
#define MAY_FREE true
#else
#define MAY_FREE (vouched || !IS_LOCKED)
#endif
#endif

proctype publisher() {
  byte n = 1, b, may[NB], used[NB];    /* 0: free; 1: LIVE; 2: RETIRED */
  do
  :: n > LAST -> break
  :: up && g > 1 -> moved = true; break      /* it goes on in a block of the new daemon, and writes nothing here any more */
  :: n <= LAST ->
     b = 0;
     do :: b < NB && used[b] != 0 -> b++ :: else -> break od;
     if
     :: b < NB ->
        payload[b] = 0; payload[b] = n;
        used[b] = 1; gen[b] = n; n++; b = 0
     :: else ->                              /* dlx__writer_reclaim() */
#ifdef CHECKFIRST
        b = 0; do :: b == NB -> break :: b < NB -> may[b] = MAY_FREE; b++ od;
#endif
        b = 0;
        do
        :: b == NB -> break
        :: b < NB -> if :: used[b] == 1 && gen[b] + 1 != n -> gen[b] = gen[b] + GONE; used[b] = 2 :: else -> skip fi; b++
        od;
#ifdef ALONE
        if :: !vouched && alone == 0 -> alone = n :: else -> skip fi;
#endif
        b = 0;
        do
        :: b == NB -> break
        :: b < NB ->
#ifndef CHECKFIRST
           may[b] = MAY_FREE;                /* two loads: `vouched`, then the locks; either may be false by now */
#endif
           if :: used[b] == 2 && may[b] -> used[b] = 0 :: else -> skip fi;
           b++
        od;
        b = 0;
        do :: b < NB && used[b] != 0 -> b++ :: else -> break od;
        /* Full. It waits for a daemon, or for a reader to leave. */
#ifdef ALONE
        if :: b < NB -> skip :: else -> up && g > 1 fi
#else
        if :: b < NB -> skip :: else -> (up && g > 1) || vouched || !IS_LOCKED fi
#endif
     fi
  od
}
proctype daemons() {
  byte r;
  do
  :: g == 1 -> up = false;
#ifdef CLEARLATE
     g = 2; up = true
#else
     vouched = false; g = 2; up = true        /* the kernel, before anybody hears that it has ended */
#endif
  :: g > 1 && vouched -> vouched = false      /* CLEARLATE */
  :: g > 1 && g < ND ->                       /* this one ends, and the next one begins */
     up = false; g++;
#ifdef LOCKED
     r = 0; do :: r == NR -> break :: r < NR -> locked[r] = false; r++ od;
#endif
     if :: true -> up = true :: true -> break /* or none */ fi
  :: g == ND && !vouched -> up = false; break
  :: g > 1 && !moved ->
     r = 0;
     do :: r < NR && open[r] -> r++ :: else -> break od;
     if
     :: r == NR -> skip
     :: else ->
#ifdef LOCKLATE
        open[r] = true; atomic { if :: !gone_away[r] -> locked[r] = true :: else -> skip fi }
#else
        locked[r] = true;
        if
        :: open[r] = true
        :: locked[r] = false; up = false; break       /* it ends before LinkOpen is sent, and the lock with the descriptor */
        fi
#endif
     fi
  od;
  r = 0;
  do :: r == NR -> break :: r < NR -> if :: !open[r] -> over[r] = true :: else -> skip fi; r++ od
}
proctype reader(byte r) {
  byte b, n;
  open[r] || over[r];
  if :: over[r] -> goto out :: else -> skip fi;
  do
  :: break                                    /* it leaves */
  :: select (b : 0 .. NB - 1);
     n = gen[b];
     if
     :: n != 0 && n < GONE && MAY_TAKE ->     /* its hold word nobody reads */
#ifdef UNMAPFIRST
        locked[r] = false;
#endif
        assert(payload[b] == n);
        assert(payload[b] == n)
     :: else -> skip
     fi
  od;
  atomic { gone_away[r] = true; locked[r] = false } /* the last message is released, the block unmapped */
out: skip
}
init { byte r; atomic { run publisher(); run daemons(); do :: r == NR -> break :: r < NR -> run reader(r); r++ od } }
