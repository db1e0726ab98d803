/* SPDX-License-Identifier: Apache-2.0 */
/* A design that is not in the code (docs/decisions/0041): a publisher stays in its control block and
 * its arenas when its daemon ends, and hands them to the next one, which proves them again. Nothing
 * is copied, there is no second block, and nobody waits for subscribers to rejoin.
 *
 *   publisher: Adopt, with a descriptor of each region   daemon: proves and charges them, makes a
 *                                                        line and a link socket, answers
 *   publisher: reads the old link socket to its end,
 *              looks at the new line from now on, Ready  daemon: opens links from now on
 *
 * The line itself cannot be handed over: its only writable mapping ended with its daemon. A
 * subscription needs a link by the new daemon, for arenas that come later. Both of its links are in
 * one block, so the new one begins where the old one is, at any time.
 *
 * Daemons 1 .. ND follow each other, the last one stays. Reader 0 is reliable and has a link by
 * daemon 1; reader 1 is not reliable, and a newcomer by any daemon. Link (r, g) is that of reader r
 * by daemon g; each has one hold word. Messages above A lie in a second arena, which comes when a
 * daemon is there, and is sent to each link by itself. There are NB payloads, and an entry for each
 * message: ring.pml has entries that are used again, bells and tickets. A take, the retirement and
 * a look at all hold words are one step each.
 *
 * A daemon opens links that the publisher does not know in two cases:
 * -DSTORE    a daemon has got the regions back from the service manager, or by execve, and shows
 *            them to newcomers until the publisher comes. Each has a lock (shown.pml)
 * -DPENDING  the link socket is full, so that LinkAdded waits in the daemon (waiting.pml)
 * As designed, a publisher that finds such a link at the end of its daemon does not stay: it moves
 * to new memory, as the code does (carry.pml, restart.pml), and the model ends there.
 *
 * -DNOMOVE=1   it stays, and looks for locks while it has no daemon, as shown.pml does
 * -DNOMOVE=2   it stays, each link has a lock of its own, and the publisher frees nothing while a
 *              link is locked that it does not know
 * -DKEEP       reader 1 may make no call any more while it holds a message
 * -DONLY=0, 1     there is only that reader
 * -DDIE=0, 1, 2   that reader may die at any moment, or the publisher
 * -DOVERLAP    a daemon may begin while the former one is there: somebody removed the socket's file
 * -DSLOW       the answer to Ready may be late: the publisher goes on
 * -DHOSTILE    a region may lack pages
 *
 * Claims: reader 0 takes 1 .. LAST, each once; reader 1 takes in order, each at most once; what is
 * held is not written to; each region is charged once while its publisher or a link is there, and
 * not afterwards; nobody waits for ever.
 *
 * needless: -DCLOSEFIRST  the new link's cursor may come after the old link is closed: its 0 says that
 *                         it has passed nothing
 *
 * mutants, which must fail:
 * -DEARLYSHOW    links are opened after Adopt, before the publisher looks at the new line
 * -DNODRAIN      the old link socket is not read to its end
 * -DLEAVEALIVE   the publisher goes to a new daemon while its own one is there (-DOVERLAP)
 * -DNOLOOK       joins is not read again after the cursors, before anything is retired
 * -DFROMSTART    the new link begins where one of a newcomer does
 * -DNOCLOSED     a link that was not opened when its daemon ended is not closed
 * -DDROPCLOSED   a closed link is not looked at, though it holds
 * -DONLYBLOCK    the control block is handed over, the arenas are not
 * -DNOPROOF      the daemon proves nothing (-DHOSTILE)
 * -DTWICE        what the daemon got back itself is charged again (-DSTORE)
 * -DLEFT         what was handed over stays charged if the publisher ends before Ready (-DDIE=2)
 */
#ifndef ND
#define ND 3
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef NB
#define NB 3
#endif
#ifndef A
#define A 1
#endif
#ifndef NOMOVE
#define NOMOVE 0
#endif
#ifndef ONLY
#define ONLY 2
#endif
#ifndef DIE
#define DIE 3
#endif
#define KEPT 1
#define NR 2
#define NL (NR * ND)
#define L(r, g) ((r) * ND + (g) - 1)
#define R(l) ((l) / ND)
#define G(l) ((l) % ND + 1)
#define NONE 255

/* daemons: of each its publisher's state, line, and what it has of the regions */
#define SHOWN 1
#define ADOPTED 2
#define OPEN 3
bool up[ND + 1], begun[ND + 1], arena_at[ND + 1];
byte state[ND + 1], joins[ND + 1], book[ND + 1], sub[NR];
bool sent[NL];                   /* LinkAdded is in the link socket */
byte ls[NL];                     /* 0: nothing */
#define ADDED 1
#define JOINED 2
#define OPENED 3
/* publisher */
byte gen[LAST + 2], slot[LAST + 2], payload[NB], ask[ND + 1], answer[ND + 1];
#define LIVE 1
#define GONE 2
bool over, moved, hole, arena, known[NL], bell;
/* subscriptions */
byte cursor[NL], hold[NL];
bool started[NL], closed[NL], locked[NL], has[NL], dead[NR];

#define AT_END(l) (dead[R(l)] || (closed[l] && hold[l] == 0))
#if ND == 2
#define NEWEST (up[2] -> 2 : (up[1] -> 1 : 0))
#else
#define NEWEST (up[3] -> 3 : (up[2] -> 2 : (up[1] -> 1 : 0)))
#endif

/* ---- daemons --------------------------------------------------------------------------------- */

#define FREE(r) (sub[r] == me && !dead[r] && !closed[L(r, me)] && ls[L(r, me)] == 0 && !over)
#define FIRST(r) (!started[L(r, 1)] && !started[L(r, ND)] && !started[L(r, 2)])
#if NOMOVE == 2
#define LOCK(l) locked[l] = !closed[l]
#else
#define LOCK(l) skip
#endif
#ifdef PENDING
#define MAY_WAIT(r) \
  :: atomic { state[me] == OPEN && FREE(r) -> joins[me]++; ls[L(r, me)] = JOINED } \
  :: atomic { ls[L(r, me)] >= JOINED && !sent[L(r, me)] && !over && state[me] == OPEN -> sent[L(r, me)] = true; bell = true }
#else
#define MAY_WAIT(r)
#endif
#define LINK(r) \
  :: atomic { state[me] == OPEN && FREE(r) -> ls[L(r, me)] = ADDED; sent[L(r, me)] = true; bell = true } \
  :: atomic { ls[L(r, me)] == ADDED -> joins[me]++; ls[L(r, me)] = JOINED } \
  :: atomic { ls[L(r, me)] == JOINED -> LOCK(L(r, me)); ls[L(r, me)] = OPENED } \
  :: atomic { ls[L(r, me)] == OPENED && arena_at[me] && !has[L(r, me)] -> has[L(r, me)] = true } \
  MAY_WAIT(r)
#define UNUSED(l) (ls[l] == 0 || AT_END(l))

proctype daemon(byte me) {
  byte r;
end:
#ifdef OVERLAP
  atomic { begun[me - 1] || me == 1 -> begun[me] = true; up[me] = true; bell = true };
#else
  atomic { me == 1 || (begun[me - 1] && !up[me - 1]) -> begun[me] = true; up[me] = true; bell = true;
#ifdef STORE
     if :: me > 1 && !over && !moved -> state[me] = SHOWN; book[me] = 1; arena_at[me] = arena :: else -> skip fi
#endif
  };
#endif
end2:
  do
  :: atomic { me < ND -> up[me] = false; bell = true }; break
  LINK(0)
  LINK(1)
#ifdef STORE
  :: atomic { state[me] == SHOWN && FREE(1) && FIRST(1) -> locked[L(1, me)] = true; ls[L(1, me)] = OPENED }
#endif
#ifndef NOPROOF
  :: atomic { ask[me] == 1 && answer[me] == 0 && hole -> answer[me] = 2 }
#define PROVEN !hole
#else
#define PROVEN true
#endif
  :: d_step {
       ask[me] == 1 && answer[me] == 0 && state[me] <= SHOWN && PROVEN ->
#ifdef TWICE
       book[me]++;
#else
       book[me] = 1;                           /* it knows by the inode what it got back itself */
#endif
       r = 0;
       do :: r == NR -> break :: r < NR -> if :: ls[L(r, me)] == OPENED -> sent[L(r, me)] = true; joins[me]++ :: else -> skip fi; r++ od;
       r = 0;
#ifndef ONLYBLOCK
       arena_at[me] = arena;
#endif
#ifdef EARLYSHOW
       state[me] = OPEN
#else
       state[me] = ADOPTED
#endif
     }
  :: atomic { ask[me] == 1 && answer[me] == 0 && state[me] >= ADOPTED -> answer[me] = 1 }
  :: atomic { ask[me] == 2 && answer[me] == 1 -> assert(book[me] == 1); state[me] = OPEN; answer[me] = 3 }
#ifdef LEFT
  :: atomic { (over || moved) && state[me] != 0 && state[me] != ADOPTED && UNUSED(L(0, me)) && UNUSED(L(1, me)) -> state[me] = 0; book[me] = 0 }
#else
  :: atomic { (over || moved) && state[me] != 0 && UNUSED(L(0, me)) && UNUSED(L(1, me)) -> state[me] = 0; book[me] = 0 }
#endif
  od
}

/* ---- publisher ------------------------------------------------------------------------------- */

#define PICK d_step { i = 0; do :: i == NL -> break :: i < NL -> if :: G(i) == mine && sent[i] -> known[i] = true :: else -> skip fi; i++ od; i = 0 }
/* dlx__writer_read_membership(); it misses a packet */
inline membership() {
  if
  :: joins[mine] != seen || missing -> d_step { seen = joins[mine]; i = 0; c = 0;
        do :: i == NL -> break :: i < NL -> if :: G(i) == mine && sent[i] -> known[i] = true :: else -> skip fi;
           if :: G(i) == mine && known[i] -> c++ :: else -> skip fi; i++ od;
        missing = seen > c; i = 0; c = 0 }
  :: else -> skip
  fi
}
#define UNKNOWN(l) (locked[l] && !known[l])
#if ND == 2
#define IS_LOCKED (locked[0] || locked[1] || locked[2] || locked[3])
#define ANY_UNKNOWN (UNKNOWN(0) || UNKNOWN(1) || UNKNOWN(2) || UNKNOWN(3))
#else
#define IS_LOCKED (locked[0] || locked[1] || locked[2] || locked[3] || locked[4] || locked[5])
#define ANY_UNKNOWN (UNKNOWN(0) || UNKNOWN(1) || UNKNOWN(2) || UNKNOWN(3) || UNKNOWN(4) || UNKNOWN(5))
#endif
#ifdef DROPCLOSED
#define COUNTS(l) (known[l] && !dead[R(l)] && !closed[l])
#else
#define COUNTS(l) (known[l] && !AT_END(l))
#endif
/* dlx__writer_reclaim() */
inline reclaim() {
  do
  :: membership();
     d_step {
       to = (n - 1 > KEPT -> n - 1 - KEPT : 0); i = 0;
       if :: missing -> to = 0 :: else -> skip fi;
       do :: i == ND -> break :: i < ND -> if :: known[i] && !dead[0] && !closed[i] && cursor[i] < to -> to = cursor[i] :: else -> skip fi; i++ od;
       i = 0
     };
#ifdef NOLOOK
     break
#else
     if :: joins[mine] == seen -> break :: else -> skip fi  /* else the reader of a closed link has a new one */
#endif
  od;
  atomic { do :: first > to -> break :: else -> gen[first] = GONE; first++ od; to = 0 };
  membership();
  may = !missing;
#if NOMOVE == 2
  if :: may && ANY_UNKNOWN -> may = false :: else -> skip fi;
#else
  if
  :: up[mine] -> skip                          /* two loads: the daemon's id, then the locks */
  :: else -> if :: IS_LOCKED -> may = false :: else -> skip fi
  fi;
#endif
  d_step {
    i = 0;
    do
    :: i == NB -> break
    :: i < NB ->
       if
       :: may && bn[i] != 0 && gen[bn[i]] == GONE ->
          l = 0;
          do :: l == NL || (COUNTS(l) && hold[l] == bn[i]) -> break :: else -> l++ od;
          if :: l == NL -> bn[i] = 0 :: else -> skip fi; l = 0
       :: else -> skip
       fi; i++
    od; i = 0; may = false
  }
}
#if NB == 2
#define HAS_ROOM (bn[0] == 0 || bn[1] == 0)
#elif NB == 3
#define HAS_ROOM (bn[0] == 0 || bn[1] == 0 || bn[2] == 0)
#else
#define HAS_ROOM (bn[0] == 0 || bn[1] == 0 || bn[2] == 0 || bn[3] == 0)
#endif
#ifdef LEAVEALIVE
#define MUST_GO (NEWEST > mine && !refused)
#else
#define MUST_GO (!up[mine] && NEWEST > mine && !refused)
#endif

#if DIE == 2
#define MAY_DIE :: atomic { over = true; bell = true }; goto out
#else
#define MAY_DIE
#endif
inline adopt() {
  atomic { to = NEWEST; ask[to] = 1 };
  if :: answer[to] != 0 || !up[to] MAY_DIE fi;
  if
  :: answer[to] == 1 ->
#ifndef NODRAIN
     PICK;
     missing = true; membership();
#endif
#if NOMOVE == 0
     if :: missing || IS_LOCKED -> moved = true; bell = true; goto out :: else -> skip fi;
#endif
     d_step { mine = to; seen = 0; missing = false };
     if :: ask[to] = 2 MAY_DIE fi;
     if
     :: answer[to] == 3 || !up[to] -> skip
#ifdef SLOW
     :: skip
#endif
     fi
  :: answer[to] == 2 -> refused = true
  :: answer[to] == 0 -> skip                   /* it has ended */
  fi; to = 0
}

proctype publisher() {
  byte n = 1, mine = 1, first = 1, p, i, l, c, to, seen = 1, bn[NB];
  bool missing, may, refused;
end:
  do
  MAY_DIE
  :: MUST_GO -> adopt()
  :: atomic { n <= LAST && n > A && !arena && state[mine] == OPEN && up[mine] -> arena = true; arena_at[mine] = true }     /* grow */
  :: n <= LAST && (n <= A || arena) ->
     if
     :: d_step { HAS_ROOM -> p = 0; do :: bn[p] == 0 -> break :: else -> p++ od;
          payload[p] = n; bn[p] = n; slot[n] = p; gen[n] = LIVE; n++; p = 0 }
     :: else ->
        bell = false;
        reclaim();
        if
        :: HAS_ROOM || bell
        :: MUST_GO -> adopt()
        MAY_DIE
        fi
     fi
  od;
out: skip
}

/* ---- subscriptions --------------------------------------------------------------------------- */

#define NEW(g) (ls[L(me, g)] == OPENED && !started[L(me, g)] && !closed[L(me, g)] && (now == NONE || G(now) < (g)))
#if ND == 2
#define ANY_NEW (NEW(1) || NEW(2))
#else
#define ANY_NEW (NEW(1) || NEW(2) || NEW(3))
#endif
#define SUB_ENDED (sub[me] == 0 || !up[sub[me]])
#define GO(x) d_step { x; bell = true }

/* where a newcomer begins: at what is kept */
inline newest() { d_step { i = 0; do :: i < LAST && gen[i + 1] == GONE -> i++ :: else -> break od } }

/* lose_daemon(): a link that was not opened never will be */
inline reconnect() {
  d_step {
    i = me * ND;
#ifndef NOCLOSED
    do :: i == (me + 1) * ND -> break :: i < (me + 1) * ND -> if :: G(i) == sub[me] && ls[i] != OPENED -> closed[i] = true :: else -> skip fi; i++ od;
#endif
    i = 0; sub[me] = NEWEST; bell = true
  }
}
/* a link by daemon g is open: dlx__reader_start(), _follow() */
inline start(g) {
#ifdef CLOSEFIRST
  if :: now != NONE -> GO(closed[now] = true) :: else -> skip fi;
#endif
  newest();
#ifndef FROMSTART
  if :: now != NONE -> i = d :: else -> skip fi;
#endif
  d_step {
    cursor[L(me, g)] = i; started[L(me, g)] = true; d = i;
#ifndef NOCLOSED
    i = me * ND; do :: i == L(me, g) -> break :: i < L(me, g) -> if :: !started[i] -> closed[i] = true; locked[i] = false :: else -> skip fi; i++ od;
#endif
    i = 0; bell = true
  };
#ifndef CLOSEFIRST
  if :: now != NONE -> d_step { closed[now] = true; locked[now] = locked[now] && hold[now] != 0; bell = true } :: else -> skip fi;
#endif
  now = L(me, g)
}
#define RELEASE(x) \
  :: hold[x] != 0 -> \
     d_step { assert(payload[slot[hold[x]]] == hold[x]); hold[x] = 0; locked[x] = locked[x] && !closed[x]; bell = true }

proctype reader(byte me) {
  byte d, last, now = NONE, i;
  if :: me == 0 -> now = 0 :: else -> skip fi;
end:                                           /* of a newcomer, whom nobody has told of anything */
  do
  :: me == 1 && now == NONE && NEWEST > 0 && SUB_ENDED -> reconnect()
  :: now != NONE || ANY_NEW -> break
  od;
  do
  :: SUB_ENDED && NEWEST > 0 -> reconnect()
  :: NEW(1) -> start(1)
  :: NEW(2) -> start(2)
#if ND > 2
  :: NEW(3) -> start(3)
#endif
  RELEASE(L(me, 1))
  RELEASE(L(me, 2))
#if ND > 2
  RELEASE(L(me, 3))
#endif
  :: now != NONE && d < LAST && hold[now] == 0 && gen[d + 1] == LIVE && (d < A || has[now]) ->
     atomic {
       if
       :: gen[d + 1] == LIVE -> d++; hold[now] = d; cursor[now] = d; assert(payload[slot[d]] == d);
          assert(d > last && (me != 0 || d == last + 1)); last = d;
          assert(!(hole && G(now) > 1))         /* it would touch a page that is not there */
       :: else -> skip
       fi; bell = true
     }
  :: now != NONE && d < LAST && gen[d + 1] == GONE && hold[now] == 0 ->
     assert(me != 0);                          /* lost */
     d++; GO(cursor[now] = d)
#ifdef KEEP
  :: me == 1 && now != NONE && hold[now] != 0 ->
end_keep: false                                /* it makes no call any more */
#endif
  :: atomic { DIE == me -> dead[me] = true; i = 0; do :: i == ND -> break :: i < ND -> locked[me * ND + i] = false; i++ od; i = 0; bell = true }; goto out
  :: me == 1 -> break                          /* it leaves at any time */
  :: d == LAST -> break
  :: (over || moved) && (d == LAST || gen[d + 1] == 0 || !(d < A || has[now])) -> break
  :: hole && SUB_ENDED == false && answer[sub[me]] == 2 -> break
  od;
  i = me * ND;                                 /* closes */
  do
  :: i == (me + 1) * ND -> break
  :: else ->
     if
     :: atomic { hold[i] != 0 -> assert(payload[slot[hold[i]]] == hold[i]); hold[i] = 0; closed[i] = true; locked[i] = false; bell = true; i++ }
     :: d_step { hold[i] == 0 -> closed[i] = true; locked[i] = false; bell = true; i++ }
     fi
  od;
out: skip
}

/* The end of all: who has a region, and whose book says so. */
proctype books() {
  byte g;
end:
  timeout;
  g = 1;
  do
  :: g > ND -> break
  :: g <= ND ->
     assert(!up[g] || !(over || moved) || !UNUSED(L(0, g)) || !UNUSED(L(1, g)) || book[g] == 0);
     g++
  od
}

init {
  byte g;
  atomic {
#ifdef HOSTILE
    if :: hole = true :: skip fi;
#endif
    state[1] = OPEN; joins[1] = 1; book[1] = 1; sub[0] = 1; up[1] = true;
    ls[0] = OPENED; sent[0] = true; known[0] = true; started[0] = true;
#if ONLY != 1
    LOCK(0);
    run reader(0);
#else
    closed[0] = true;
#endif
    run publisher();
#if ONLY != 0
    run reader(1);
#endif
    g = 1;
    do :: g > ND -> break :: else -> run daemon(g); g++ od;
    run books()
  }
}
