/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher goes on with another daemon, in another control block, and carries its newest K
 * messages. Block 0 is of the daemon before, block 1 of the next one. At any moment between two
 * messages the publisher copies the newest ones into block 1, under their numbers and with
 * memory of their own, has it announced, stores MOVED in block 0, waits until its reliable
 * subscriber has come, and goes on in block 1.
 *
 * Link 0: a subscriber that was there before, in block 0. Link 1: the same subscriber by the
 * next daemon. It joins when it likes, takes from link 1 when block 0 is at its end, from where
 * it was there, and then closes link 0, maybe with a message held by it. Link 2 (-DNEWCOMER):
 * instead, another subscriber, in block 1 from its beginning; with -DBOTH both are there. A link
 * has one hold word; it names a number, so it holds all copies of that message.
 *
 * Every message of the first subscriber is taken once, in order. Nothing is written to while it
 * is held. Nobody waits for ever. A ring has NE entries, one of them for the mark. NB blocks of
 * memory in the time of the first daemon, K more later. `window` is not here: ring.pml has it.
 *
 * -DUNRELIABLE  the publisher drops, the subscriber takes at most once and in order
 * -DOWN         a block is retired by what its own links have passed, and freed by what they hold,
 *               as if a publisher had a session for each daemon (not in the code: decision 39)
 *
 * mutants, which must fail:
 * -DONECOPY     GONE is stored in the older block only
 * -DSCANFIRST   hold words are scanned before both copies are GONE
 * -DNOFOLLOW    link 1 is taken from its beginning
 * -DCLOSEFIRST  link 0 is closed before link 1 has a cursor
 * -DDROPCLOSED  a closed link is not looked at, though it holds
 * -DHOLDFIRST   the hold word is looked at before whether the link is closed
 * -DNOREJOIN    the publisher goes on before its subscriber has come
 * -DLATE        one more message goes into block 0 after the copies
 * -DBASEHEAD    block 1 says that it begins at the newest message, in spite of what it carries
 * -DFULL        no entry is left for the mark
 * -DUNBLOCKED   who uses block 0 does not ring after the move
 */
#ifndef NE
#define NE 4
#endif
#ifndef K
#define K 1
#endif
#ifndef KEPT
#define KEPT 1
#endif
#ifndef NB
#define NB 3
#endif
#ifndef LAST
#define LAST 4
#endif
#ifdef NEWCOMER
#define NL 3
#else
#define NL 2
#endif
#ifdef UNRELIABLE
#define RELIABLE false
#else
#define RELIABLE true
#endif
#define GONE 128
#define MOVED 64
#define NUM(g) ((g) & 63)
#define CLOSED 255
#define AT(b, n) ((b) * NE + (n) % NE)
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define BLOCK_OF(l) ((l) == 0 -> 0 : 1)
#ifdef OWN
#define ITS(b) (b)
#else
#define ITS(b) 0
#endif

byte gen[2 * NE], word[2 * NE], payload[NB + K], head[2], base; bool blocked[2];   /* publisher */
bool announced, joined[NL]; byte joins;                                            /* daemons */
byte hold[NL], cursor[NL]; bool started[NL], sleeping[NL];                         /* subscribers */
bool bellP, bellS[NL];                                                             /* kernel */

/* ---- publisher ------------------------------------------------------------------------------ */

#define FREE 0
#define LIVE 1
#define RETIRED 2
#define NOT_YET 3
/* What it remembers. */
byte first[2] = 1, reusable = 1, passed[2], last = 63, seen, st[NB + K], bn[NB + K];
byte payload_of[2 * NE]; bool known[NL], left[NL], held[NB + K], moved;
#ifdef OWN
bool bb[NB + K];
#define IS_IN(i, l) (bb[i] == BLOCK_OF(l))
#define PUT_INTO(p, b) bb[p] = b
#else
#define IS_IN(i, l) true
#define PUT_INTO(p, b) skip
#endif

#define COUNTS(l) (known[l] && !left[l])
inline membership() {
  if
  :: joins != seen ->
     d_step { seen = joins; l = 0; do :: l == NL -> break :: l < NL -> known[l] = joined[l];
        l++ od; l = 0 }
  :: else -> skip
  fi
}
inline tickets() {
  l = 0;
  do :: l == NL -> break :: l < NL -> if :: known[l] && sleeping[l] -> bellS[l] = true :: else ->
     skip fi; l++ od; l = 0
}
/* look_at_cursors() */
inline look() {
  d_step { passed[0] = n - 1; passed[1] = ITS(1) * (n - 1); l = 0 };
  do
  :: l == NL -> break
  :: l < NL -> if :: COUNTS(l) && RELIABLE -> d_step {
     passed[ITS(BLOCK_OF(l))] = MIN(passed[ITS(BLOCK_OF(l))], cursor[l]) } :: else -> skip fi;
     l++
  od;
  l = 0
}
/* free_unheld() */
inline scan() {
  l = 0;
  do
  :: l == NL -> break
  :: l < NL ->
     if
     :: COUNTS(l) ->
#ifdef HOLDFIRST
        h = hold[l]; c = cursor[l];
#else
        c = cursor[l];
#ifdef DROPCLOSED
        h = (c == CLOSED -> 0 : hold[l]);
#else
        h = hold[l];
#endif
#endif
        d_step {
          if :: c == CLOSED && h == 0 -> left[l] = true :: else -> skip fi;
          i = 0;
          do :: i == NB + K -> break :: i < NB + K -> if :: h != 0 && bn[i] == h && IS_IN(i, l) ->
             held[i] = true :: else -> skip fi; i++ od;
          i = 0; h = 0; c = 0
        }
     :: else -> skip
     fi; l++
  od;
  atomic {
    l = 0; i = 0;
    do
    :: i == NB + K -> break
    :: i < NB + K -> if :: st[i] == RETIRED && !held[i] -> st[i] = FREE; payload[i] = 0;
       bn[i] = 0 :: else -> skip fi; held[i] = false; i++
    od; i = 0
  }
}
#define FIRST(b) first[ITS(b)]
#define RETIRE_IN(b) d_step { st[payload_of[AT(b, FIRST(b))]] = RETIRED }
#define GONE_IN(b) d_step { gen[AT(b, FIRST(b))] = FIRST(b) + GONE; st[payload_of[AT(b, FIRST(b))]] = RETIRED }
#define IS_COPY (moved && FIRST(1) > base && FIRST(1) <= last)
inline retire_copy() {
#ifdef SCANFIRST
  if :: IS_COPY -> RETIRE_IN(1); scan() :: else -> skip fi;
#endif
#ifdef ONECOPY
  if :: IS_COPY -> RETIRE_IN(1) :: moved && FIRST(1) > last -> GONE_IN(1) :: else -> skip fi
#else
  if :: moved && FIRST(1) > base -> GONE_IN(1) :: else -> skip fi
#endif
}
/* dlx__writer_retire_in() */
inline retire() {
  do
  :: first[0] > to || (ITS(1) && first[0] > last) -> break
  :: else ->
     if :: first[0] <= last -> GONE_IN(0) :: else -> skip fi;
#ifndef OWN
     retire_copy();
#endif
     first[0]++
  od;
#ifdef OWN
  to = MIN((n - 1 > KEPT -> n - 1 - KEPT : 0), passed[1]);
  do :: !moved || first[1] > to -> break :: else -> retire_copy(); first[1]++ od;
#endif
  to = 0
}
/* dlx__writer_reclaim(), which may drop */
inline reclaim() {
  membership(); look();
  to = MIN((n - 1 > KEPT -> n - 1 - KEPT : 0), passed[0]);
  retire();
  reusable = FIRST(blk);
  membership(); scan()
}
#define FIND d_step { p = NB + K; i = 0; do :: i == NB + K -> break :: i < NB + K && st[i] == FREE -> p = i; break :: else -> i++ od; i = 0 }
#ifdef FULL
#define HAS_ROOM (n - 1 < reusable + NE - 1)
#else
#define HAS_ROOM (n - 1 < reusable + NE - 2)
#endif
#define WAIT atomic { bellP -> bellP = false }
inline put(b, m) { d_step { st[p] = LIVE; PUT_INTO(p, b); bn[p] = m; payload[p] = m; payload_of[AT(b, m)] = p;
   word[AT(b, m)] = p; p = 0 }; gen[AT(b, m)] = m }

proctype publisher() {
  byte n = 1, p, i, l, c, h, to, blk;
  d_step { i = NB; do :: i == NB + K -> break :: i < NB + K -> st[i] = NOT_YET; i++ od; i = 0 };
  do
  :: n > LAST -> break
  :: n > 1 && !moved ->                       /* the next daemon is here: dlx__writer_block_new() */
     d_step {
       base = (n - 1 > K -> n - 1 - K : 0); base = (base < first[0] - 1 -> first[0] - 1 : base);
       first[1] = base + 1; to = base + 1; p = NB;
       do
       :: to == n -> break
       :: else -> st[p] = LIVE; PUT_INTO(p, 1); bn[p] = to; payload[p] = to; payload_of[AT(1, to)] = p;
          word[AT(1, to)] = p; gen[AT(1, to)] = to; to++; p++
       od;
       do :: p == NB + K -> break :: else -> st[p] = FREE; p++ od;
       p = 0; to = 0; head[1] = n - 1;
#ifdef BASEHEAD
       base = n - 1
#endif
     };
     announced = true;
#ifdef LATE
     FIND; if :: p < NB + K && HAS_ROOM -> put(0, n); head[0] = n; n++ :: else -> skip fi;
#endif
     moved = true;                            /* dlx__writer_move() */
#ifndef UNBLOCKED
     blocked[0] = true;
#endif
     gen[AT(0, n)] = n + MOVED;
     membership();
     tickets();
     d_step { last = n - 1; blk = 1; reusable = FIRST(1) };
#if !defined(NOREJOIN) && !defined(UNRELIABLE)
     blocked[1] = true;
     do
     :: membership(); c = cursor[0];
        if :: !known[0] || c == CLOSED || (known[1] && started[1]) -> break :: else -> WAIT fi
     od; blocked[1] = false; c = 0
#endif
  :: n <= LAST && !(LAST > 1 && n == LAST && !moved) ->
     if :: reclaim() :: skip fi;              /* memory may be wanted at any time */
     FIND;
     if
     :: p < NB + K && HAS_ROOM -> skip
     :: else ->
again:
        reclaim();
        FIND;
        if
        :: p < NB + K && HAS_ROOM -> if :: blk == 1 || !moved -> blocked[blk] = false :: else ->
           skip fi
        :: else ->
#ifdef UNRELIABLE
           assert(false);                     /* there are blocks enough */
#endif
           if :: !blocked[blk] -> blocked[blk] = true :: else -> WAIT fi; goto again
        fi
     fi;
     put(blk, n); n++;                        /* dlx__writer_announce() */
     d_step { head[blk] = n - 1; reusable = FIRST(blk) };
     membership(); tickets()
  od
}

/* ---- subscribers ---------------------------------------------------------------------------- */

inline ring(b) { if :: blocked[b] -> bellP = true :: else -> skip fi }
/* find_newest() */
inline find_newest(b, h) {
  h = head[b];
  do :: g = gen[AT(b, h + 1)]; if :: NUM(g) == h + 1 && !(g & MOVED) -> h++ :: NUM(g) > h + 1 ->
     h = head[b] :: else -> break fi od;
  g = 0
}
/* dlx__reader_take() of what link k has next; SURE as in ring.pml */
#define SURE (RELIABLE && n > newest[BLOCK_OF(k)])
inline take(k, b) {
  x = word[AT(b, n)];
  hold[k] = n;
  if
  :: SURE -> cursor[k] = n
  :: else -> g = gen[AT(b, n)]; cursor[k] = n
  fi;
  ring(b);
  cur = n;
  if
  :: NUM(g) != n || (g & GONE) -> assert(!RELIABLE || n <= newest[b]); hold[k] = 0; ring(b)
  :: else -> d_step { assert(payload[x] == n); assert(n > prev && (!RELIABLE || n == prev + 1));
     prev = n; at[k] = x }
  fi;
  x = 0
}
inline release(k) { assert(payload[at[k]] == hold[k]); hold[k] = 0; at[k] = 0; ring(BLOCK_OF(k)) }
inline join(k) { atomic { joined[k] = true; joins++ } }
/* It wakes for the next daemon's news, too, and another thread may release what link 0 holds. */
inline sleep(k, b) {
  sleeping[k] = true;
  g = gen[AT(b, n)];
  if :: NUM(g) < n -> atomic { (bellS[k] || (k == 0 && announced && !joined[1]) || (k == 1 && hold[0] != 0)) -> bellS[k] = false } :: else -> skip fi;
  sleeping[k] = false
}

proctype subscriber() {
  byte g, n, x, cur, prev, newest[2], at[2]; bool second, ended;
  atomic { if :: !announced -> join(0) :: announced -> goto out fi };   /* the daemon before is gone */
  find_newest(0, newest[0]);
  d_step { cur = (newest[0] > KEPT -> newest[0] - KEPT : 0); prev = cur };
  cursor[0] = cur; started[0] = true; ring(0);
  do
  :: hold[0] != 0 -> release(0)
  :: second && hold[1] != 0 -> release(1)
#ifndef CLOSEFIRST
  :: announced && !joined[1] -> join(1); find_newest(1, newest[1]); cursor[1] = base;
     started[1] = true; ring(1)
#endif
  :: cur == LAST && hold[0] == 0 && hold[1] == 0 -> break
  :: !second && !ended && hold[0] == 0 && cur != LAST ->
     atomic { n = cur + 1; g = gen[AT(0, n)] };
     if
     :: g == n + MOVED -> ended = true
     :: NUM(g) < n -> sleep(0, 0)
     :: g == n -> take(0, 0)
     :: else -> assert(!RELIABLE || n <= newest[0]); d_step { cur = n; prev = n }; cursor[0] = n;
        ring(0)
     fi; atomic { g = 0; n = 0 }
  :: !second && !ended && hold[0] != 0 ->
     g = gen[AT(0, cur + 1)]; if :: g == cur + 1 + MOVED -> ended = true :: else -> skip fi; g = 0
  :: !second && ended && announced ->         /* block 0 is drained: dlx__reader_follow() */
#ifdef CLOSEFIRST
     cursor[0] = CLOSED; ring(0);
     join(1); find_newest(1, newest[1]); cursor[1] = base; started[1] = true; ring(1);
#endif
     if
     :: joined[1] ->
#ifdef NOFOLLOW
        cur = base;
#else
        assert(base <= cur); cursor[1] = cur; ring(1);
#endif
#ifndef CLOSEFIRST
        cursor[0] = CLOSED; ring(0);
#endif
        second = true
     :: else -> skip
     fi
  :: second && hold[1] == 0 && cur != LAST ->
     atomic { n = cur + 1; g = gen[AT(1, n)] };
     if
     :: NUM(g) < n -> sleep(1, 1)
     :: g == n -> take(1, 1)
     :: else -> assert(!RELIABLE); cur = n; cursor[1] = n
     fi; atomic { g = 0; n = 0 }
  od;
  if :: joined[1] -> cursor[1] = CLOSED; ring(1) :: else -> skip fi;
  cursor[0] = CLOSED; ring(0);
out: skip
}

#ifdef NEWCOMER
proctype newcomer() {
  byte g, n, x, cur, prev, newest[2], at[3];
end: announced;
  join(2);
  find_newest(1, newest[1]);
  d_step { cur = base; prev = cur; assert(cur < newest[1]) };          /* there is something for it */
  cursor[2] = cur; started[2] = true; ring(1);
  do
  :: hold[2] != 0 -> release(2)
  :: cur == LAST && hold[2] == 0 -> break
  :: hold[2] == 0 && cur != LAST ->
     atomic { n = cur + 1; g = gen[AT(1, n)] };
     if
     :: NUM(g) < n -> sleep(2, 1)
     :: g == n -> take(2, 1); prev = n
     :: else -> assert(!RELIABLE || n <= newest[1]); d_step { cur = n; prev = n }; cursor[2] = n;
        ring(1)
     fi; atomic { g = 0; n = 0 }
  od;
  cursor[2] = CLOSED; ring(1)
}
#endif

init { atomic {
    run publisher();
#if !defined(NEWCOMER) || defined(BOTH)
    run subscriber();
#endif
#ifdef NEWCOMER
    run newcomer();
#endif
  } }
