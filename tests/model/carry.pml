/* SPDX-License-Identifier: Apache-2.0 */
/* What a publisher retains, carried along when it goes on with another daemon.  Block 0 (N0 slots) is of the daemon before,
 * block 1 (N1 slots) of the next one: the publisher copies its last K messages into it, under their numbers, has it
 * announced, marks block 0 and goes on in block 1, once its reliable subscriber has come to it. A copy has a slot and memory of its own.
 * Link 0: a reliable subscriber that was there before, in block 0. Link 1: the same subscriber by the next daemon; it joins when
 * it likes, takes from it when block 0 is at its end, over what it has passed there, and then closes link 0, maybe with a message held by
 * it. Link 2 (-DNEWCOMER): in block 1 from its beginning. One hold word a link; it names a number, and so holds all copies of that message.
 * Every message of the first subscriber is taken once, in order; nothing is written to while it is held.
 *
 * mutants: -DONECOPY    only the newest copy's gen is cleared when a message is retired                   must fail
 *          -DNOFOLLOW   the next link is taken from its beginning                                        must fail
 *          -DCLOSEFIRST link 0 is closed before link 1 has a cursor                                      must fail
 *          -DDROPCLOSED a closed link is not looked at, though it holds                                  must fail
 *          -DHOLDFIRST  the hold word is looked at before whether the link is closed                     must fail
 *          -DNOREJOIN   it goes on before                                                                must fail
 *          -DSTALE      one more message goes into block 0 after the copies                              must fail
 *          -DBASEHEAD   the next block says that it begins at head, in spite of what it carries (K=2)    must fail
 */
#ifndef N0
#define N0 2
#endif
#ifndef N1
#define N1 3
#endif
#ifndef H
#define H 1
#endif
#ifndef K
#define K 1
#endif
#ifndef LAST
#define LAST 4
#endif
#ifdef NEWCOMER
#define NL 3
#else
#define NL 2
#endif
#define NT (N0 + N1)
#define MV 64
#define CLOSED 254
#define UNSET 255
#define BASE(b) ((b) * N0)
#define NSL(b) ((b) == 0 -> N0 : N1)
#define RINGI(b, n) (BASE(b) + ((n) % NSL(b)))
#define NEWEST(b) (head[b] % MV)

byte head[2], base1, ring[NT], gen[NT], payload[NT]; bool blocked; /* publisher */
bool announced; byte epoch; bool joined[NL];                       /* daemons */
byte hold[NL], cursor[NL]; bool sleeping[NL];                      /* subscribers */
bool bellP, bellS[NL];
byte seen, slotseq[NT]; bool freeslot[NT], known[NL], dropped[NL];

inline read_membership() {
  if :: epoch != seen -> atomic { seen = epoch; l = 0; do :: l == NL -> break :: l < NL -> known[l] = joined[l]; l++ od; l = 0 }
     :: else -> skip fi
}
#define COUNTS(l) (known[l] && !dropped[l])
/* Retire what all have passed and the history does not need: all copies of a message. */
inline retire() {
  i = 0;
  do :: i == NT -> break
     :: i < NT ->
        if :: !freeslot[i] && gen[i] != 0 && slotseq[i] + H <= top ->
              ok = true; l = 0;
              do :: l == NL -> break
                 :: l < NL -> if :: COUNTS(l) -> c = cursor[l]; if :: (c == UNSET || c < slotseq[i]) -> ok = false :: else -> skip fi :: else -> skip fi; l++
              od;
              l = 0;
              if :: ok ->
#ifdef ONECOPY
                    c = NT; do :: c == 0 -> break :: else -> c--; if :: !freeslot[c] && slotseq[c] == slotseq[i] -> break :: else -> skip fi od;
                    gen[c] = 0; if :: c != i -> slotseq[i] = 0 :: else -> skip fi
#else
                    gen[i] = 0
#endif
                 :: else -> skip fi
           :: else -> skip
        fi; i++
  od; i = 0
}
inline drop() {
  l = 0;
  do :: l == NL -> break
     :: l < NL ->
        if :: COUNTS(l) ->
#ifdef HOLDFIRST
              c = hold[l]; if :: c == 0 && cursor[l] == CLOSED -> dropped[l] = true :: else -> skip fi
#else
              if :: cursor[l] == CLOSED ->
#ifdef DROPCLOSED
                    dropped[l] = true
#else
                    if :: hold[l] == 0 -> dropped[l] = true :: else -> skip fi
#endif
                 :: else -> skip fi
#endif
           :: else -> skip fi; l++
  od; l = 0
}
inline free_unheld() {
  i = 0;
  do :: i == NT -> break
     :: i < NT ->
        if :: (!freeslot[i] && (gen[i] == 0 || slotseq[i] == 0)) ->
              ok = true; l = 0;
              do :: l == NL -> break
                 :: l < NL -> if :: COUNTS(l) && hold[l] == slotseq[i] && slotseq[i] != 0 -> ok = false :: else -> skip fi; l++
              od; l = 0;
              if :: ok -> payload[i] = 0; freeslot[i] = true :: else -> skip fi /* its memory is given back */
           :: else -> skip
        fi; i++
  od; i = 0
}
inline pass() { read_membership(); retire(); read_membership(); drop(); free_unheld(); findfree() }
inline findfree() { d_step { s = NT; i = BASE(blk); do :: i == BASE(blk) + NSL(blk) -> break :: i < BASE(blk) + NSL(blk) && freeslot[i] -> s = i; i = BASE(blk) + NSL(blk) :: i < BASE(blk) + NSL(blk) && !freeslot[i] -> i++ od; i = 0; ok = false; c = 0 } }
inline ringall() { l = 0; do :: l == NL -> break :: l < NL -> if :: (known[l] && sleeping[l]) -> bellS[l] = true :: else -> skip fi; l++ od; l = 0 }
/* Message `seq` into slot s of block b, and no further. */
inline fill(b) { freeslot[s] = false; slotseq[s] = seq; payload[s] = seq; gen[s] = seq; ring[RINGI(b, seq)] = s }

proctype publisher() {
  byte s, seq, i, l, c, blk, top; bool ok, moved;
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
                          :: else -> atomic { bellP -> bellP = false }
                       fi
                 od; blocked = false
           fi
     fi;
     fill(blk); head[blk] = seq; top = seq;
     read_membership(); ringall();
     seq++; s = 0;
     if :: !moved && seq > 1 && seq <= LAST ->  /* the next daemon is here */
           moved = true; i = 0; ok = true;
           base1 = top;
           /* The newest ones that are live, the oldest of them first. */
           d_step { c = 0; do :: c == K -> break :: c < K ->
             l = 0; do :: l == N0 -> break :: l < N0 && !freeslot[l] && gen[l] == top - c -> break :: l < N0 && !(!freeslot[l] && gen[l] == top - c) -> l++ od;
             if :: l == N0 -> break :: else -> skip fi; base1 = top - c - 1; c++ od; c = 0; l = 0 }
           seq = base1 + 1;
           do :: seq > top -> break
              :: else -> s = BASE(1) + i; fill(1); i++; seq++
           od; i = 0; s = 0;
           head[1] = top;
#ifdef BASEHEAD
           base1 = top;
#endif
#ifdef STALE
           do :: findfree(); if :: s < NT -> break :: else -> pass(); if :: s < NT -> break :: else -> goto stuck fi fi od;
           fill(0); head[0] = seq; top = seq; seq++; s = 0;
#endif
           announced = true;
           head[0] = top + MV; blk = 1; ok = false;
#ifndef NOREJOIN
           blocked = true;
           do :: read_membership(); c = cursor[0];
                 if :: (!known[0] || c == CLOSED || (known[1] && cursor[1] != UNSET)) -> break
                    :: else -> atomic { bellP -> bellP = false }
                 fi
           od; blocked = false; c = 0
#endif
        :: seq > 1 -> skip
     fi
  od;
#ifdef STALE
stuck: skip
#endif
}
inline ringP() { if :: blocked -> bellP = true :: else -> skip fi }

/* Take message cur + 1 of block b by link l. */
inline take(l, b) {
  n = cur + 1; s = ring[RINGI(b, n)];
  hold[l] = n;
  if
  :: gen[s] != n -> assert(n <= joined_at); hold[l] = 0; cur = n; cursor[l] = n; ringP()
  :: else ->
     assert(payload[s] == n); assert(n > last); last = n;
     cur = n; cursor[l] = n; hs[l] = s; ringP()
  fi; n = 0; s = 0
}
inline release(l) { assert(payload[hs[l]] == hold[l]); hold[l] = 0; ringP() }
/* The next daemon is heard of, too. */
inline sleep(l, b) {
  sleeping[l] = true;
  if :: head[b] == cur -> atomic { (bellS[l] || announced && !joined[1]) -> bellS[l] = false } :: else -> skip fi;
  sleeping[l] = false
}

proctype follower() {
  byte h, n, s, cur, last, joined_at, hs[NL]; bool second, passed0;
  atomic {
    if :: !announced -> joined[0] = true; epoch++ :: announced -> goto out fi; /* the daemon before is gone */
    joined_at = NEWEST(0)
  }
  cur = (joined_at > H -> joined_at - H : 0); last = cur;
  cursor[0] = cur; ringP();
  do
  :: hold[0] != 0 -> release(0)
  :: second && hold[1] != 0 -> release(1)
#ifndef CLOSEFIRST
  :: announced && !joined[1] -> atomic { joined[1] = true; epoch++ } cursor[1] = base1; ringP()
#endif
  :: cur == LAST && hold[0] == 0 && hold[1] == 0 -> break
  :: !second && !passed0 && hold[0] == 0 && cur != LAST ->
     h = head[0];
     if
     :: h == cur -> sleep(0, 0)
     :: h == cur + MV -> passed0 = true
     :: else -> take(0, 0)
     fi; h = 0
  :: !passed0 && hold[0] != 0 && head[0] == cur + MV -> passed0 = true
  :: !second && passed0 && (joined[1] || announced) ->
#ifdef CLOSEFIRST
     cursor[0] = CLOSED; ringP();
     atomic { joined[1] = true; epoch++ }
     cursor[1] = base1; ringP();
#endif
     if :: joined[1] ->
#ifdef NOFOLLOW
           cur = base1;
#else
           assert(base1 <= cur); cursor[1] = cur; ringP();
#endif
#ifndef CLOSEFIRST
           cursor[0] = CLOSED; ringP();
#endif
           second = true
        :: else -> skip fi
  :: second && hold[1] == 0 && cur != LAST ->
     h = head[1];
     if :: h == cur -> sleep(1, 1) :: else -> assert(h > cur); take(1, 1) fi; h = 0
  od;
  if :: joined[1] -> cursor[1] = CLOSED; ringP() :: else -> skip fi;
  cursor[0] = CLOSED; ringP();
out: skip
}

#ifdef NEWCOMER
proctype newcomer() {
  byte h, n, s, cur, last, joined_at, hs[NL], first;
end: announced;
  atomic { joined[2] = true; epoch++; joined_at = NEWEST(1); first = base1 }
  assert(first < joined_at); /* there is something for it */
  cur = first; last = cur;
  cursor[2] = cur; ringP();
  do
  :: hold[2] != 0 -> release(2)
  :: cur == LAST && hold[2] == 0 -> break
  :: hold[2] == 0 && cur != LAST ->
     h = head[1];
     if :: h == cur -> sleep(2, 1) :: else -> assert(h > cur); take(2, 1) fi; h = 0
  od;
  cursor[2] = CLOSED; ringP()
}
#endif

init { byte i;
  atomic { i = 0; do :: i == NT -> break :: i < NT -> freeslot[i] = true; i++ od;
    i = 0; do :: i == NL -> break :: i < NL -> cursor[i] = UNSET; i++ od; i = 0;
    run publisher(); run follower();
#ifdef NEWCOMER
    run newcomer();
#endif
  } }
