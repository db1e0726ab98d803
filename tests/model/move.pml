/* SPDX-License-Identifier: Apache-2.0 */
/* The move to a larger control block, NB - 1 times.  One publisher that must not drop, NR reliable subscribers that hold up to B.
 * Fixed design: the link page (cursor = global message number, sleeping flag, hold words) belongs to the LINK, not to
 * the block; a hold word names a message number, so the lease page does not depend on the number of slots.
 * Block b has Nb slots. The daemon announces it (announced) before the head of the block before is marked
 * (MV, DLX_SHM_MOVED in the code), which says that it is the last there. The mark rings nobody: the next message does.
 * A newcomer may be given any block that is announced. Who sleeps keeps a hold word free: a publisher could wait for it.
 *
 * mutants: -DNORECHECK  before it polls the subscriber looks at head again but not at its mark         must fail
 *          -DATTACHGATE only links that have attached to a later block gate/hold its slots (flags, cursors and
 *                       lease words live in a per-block page, as a first design had it)          must fail
 *          -DNOBASE     the new block's head starts at 0 instead of n                                    must fail
 *          -DONEWORD    the publisher looks at the first hold word of a link only (B=2)                  must fail
 *          -DTONEWEST   from a marked block to the newest one that is announced (NB=3)                   must fail
 */
#ifndef NR
#define NR 2
#endif
#ifndef NB
#define NB 2
#endif
#ifndef N0
#define N0 2
#endif
#ifndef N1
#define N1 3
#endif
#ifndef N2
#define N2 0
#endif
#ifndef H
#define H 1
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef B
#define B 1        /* hold words per link */
#endif
#define NT (N0 + N1 + N2)
#define MV 64
#define UNSET 255
#define BASE(b) ((b) == 0 -> 0 : ((b) == 1 -> N0 : N0 + N1))
#define NSL(b) ((b) == 0 -> N0 : ((b) == 1 -> N1 : N2))
#define BLOCK(i) ((i) < N0 -> 0 : ((i) < N0 + N1 -> 1 : 2))
#define RINGI(b, n) (BASE(b) + ((n) % NSL(b)))

byte head[NB], base[NB], ring[NT], gen[NT], payload[NT]; bool blocked;   /* publisher (blocks side by side) */
byte announced; byte epoch; bool joined[NR]; byte hj[NR];             /* daemon */
byte hold[NR * B], cursor[NR]; bool sleeping[NR]; byte inblk[NR];        /* subscribers */
bool gone[NR], bellP, bellS[NR];
byte seen, slotseq[NT]; bool freeslot[NT], known[NR], noted[NR];

inline read_membership() {
  if :: epoch != seen -> atomic { seen = epoch; r = 0; do :: r == NR -> break :: r < NR -> known[r] = joined[r]; r++ od }
     :: else -> skip fi
}
#ifdef ATTACHGATE
#define COUNTS(r, i) (known[r] && !gone[r] && BLOCK(i) <= inblk[r])
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
#if B > 1 && !defined(ONEWORD)
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
     if :: blk + 1 < NB && seq > 1 && seq <= LAST ->  /* between two messages: move */
#ifndef NOBASE
           head[blk + 1] = top;
#endif
           base[blk + 1] = top; announced = blk + 1;   /* the daemon has the block and offers it */
           head[blk] = top + MV; blk++
        :: skip
     fi
  od
}
inline ringP() { if :: blocked -> bellP = true :: else -> skip fi }

/* Release the message of word k. */
inline release(k) { assert(payload[hs[k]] == hold[me * B + k]); hold[me * B + k] = 0; ringP() }
#if B > 1
#define HELD(k) (hold[me * B + (k)] != 0)
#define CAN_TAKE (!HELD(0) || !HELD(1))
#define WORD (HELD(0) -> 1 : 0)
#else
#define CAN_TAKE (hold[me] == 0)
#define WORD 0
#endif

proctype subscriber(byte me) {
  byte h, n, s, k, cur, b, hs[B]; bool mv;
  atomic {
    joined[me] = true; epoch++; b = 0;
    do :: b < announced -> b++ :: break od;
    hj[me] = 0;
    do :: k == NB -> break :: k < NB -> if :: head[k] % MV > hj[me] -> hj[me] = head[k] % MV :: else -> skip fi; k++ od; k = 0
  }
  inblk[me] = b;
  h = head[b] % MV;
  cur = (h > H -> h - H : 0);
  if :: cur < base[b] -> cur = base[b] :: else -> skip fi;
  cursor[me] = cur; ringP();
  do
#if B > 1
  :: HELD(0) -> release(0)
  :: HELD(1) -> release(1)
  :: cur == LAST && !HELD(0) && !HELD(1) -> break
#else
  :: hold[me] != 0 -> release(0)
  :: cur == LAST && hold[me] == 0 -> break
#endif
  :: cur != LAST && CAN_TAKE ->
     d_step { h = head[b]; mv = (h >= MV); h = h % MV }
     if
     :: h == cur ->
        if
#ifdef TONEWEST
        :: mv -> b = announced; assert(base[b] == cur || cur <= hj[me]); inblk[me] = b
#else
        :: mv -> b++; assert(base[b] == cur || cur <= hj[me]); inblk[me] = b
#endif
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
        n = cur + 1; s = ring[RINGI(b, n)]; k = WORD;
        hold[me * B + k] = n;
        if
        :: gen[s] != n -> assert(n <= hj[me]); hold[me * B + k] = 0; cur = n; cursor[me] = n; ringP()
        :: else ->
           assert(payload[s] == n); hs[k] = s;
           cur = n; cursor[me] = n;
           if :: skip :: me == 0 -> gone[me] = true; goto out fi
        fi
     fi; h = 0; n = 0; s = 0; k = 0; mv = false
  od;
out: skip
}

init { byte i;
  atomic { i = 0; do :: i == NT -> break :: i < NT -> freeslot[i] = true; i++ od;
    i = 0; do :: i == NR -> break :: i < NR -> cursor[i] = UNSET; i++ od; i = 0;
    run publisher(); do :: i == NR -> break :: i < NR -> run subscriber(i); i++ od } }
