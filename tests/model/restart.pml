/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that dies at any moment and is replaced, under a stream from one publisher to NS
 * reliable subscriptions. Daemons 0 .. NG-1 follow each other; the last one stays. Whoever finds
 * its daemon dead announces itself to the one that is there: the publisher with a new control block
 * (`base` is after_seq), a subscription with a new link for each block that its daemon shows. Link
 * s * NB + b is that of subscription s in block b; b also numbers the announcements.
 *
 * Takes, retirement and the membership line are one step each here: ring.pml and carry.pml have
 * them word by word. A bell, a ticket, `blocked`, a cursor and `started` are steps of their own,
 * and so is each packet of the daemon, which dies between any two; what it had sent stays readable.
 *
 * Claims: each subscription takes 1 .. LAST, each once and in order, counts nothing as lost, and
 * nobody waits for ever.
 *
 * -DDIE            subscription 0 may die at any moment
 * -DSLOW           the answer to PublisherReady may be late: the publisher goes on, and the daemon shows it later
 *
 * mutants: -DNOREJOIN   publishes before its subscribers have rejoined            must fail
 *          -DNOREADER   any link by the new daemon counts as that of this subscription   must fail with -DNS=2 -DNG=3
 *          -DNOSTARTED  ... and one whose cursor was not stored, too              must fail
 *          -DNODRAIN    the old link socket is not read to its end                must fail
 *          -DNOCLOSED   a link that was never opened is not closed                must fail
 *          -DNOAFTER    a link's successor is taken from at once                  must fail
 *          -DAFTEROLD   the successor of the oldest link, not of the newest one   must fail with -DNG=3
 *          -DLASTID     a publisher is known by its last id, not by its first     must fail with -DNG=3
 *          -DEARLYSTART started by LinkOpen, before the arena came that was there must fail
 *          -DEARLYLEAVE the old link is left when the publisher has moved         must fail
 *          -DCURSORLATE the old link is left before the new one's cursor is there must fail
 *          -DNOLOOK     a publisher that waits does not look for a new daemon     must fail
 *          -DNODEAD     dead subscribers are waited for                           must fail with -DDIE
 *          -DNORING     the first cursor rings nobody                             must fail with -DOLDUNBLOCKED
 *          -DOLDUNBLOCKED `blocked` of the old block is not set for ever          must fail with -DNORING (one of both is enough)
 *          -DGIVEUP     an announcement whose answer is late is given up, and made again      must fail with -DNG=3
 */
#ifndef NS
#define NS 1
#endif
#ifndef NG
#define NG 3
#endif
#ifndef LAST
#define LAST 4
#endif
#ifndef CAP
#define CAP 2      /* messages that a publisher may be ahead of what its links have passed */
#endif
#define H 1
#ifdef GIVEUP
#define NB (NG + 1)
#else
#define NB NG
#endif
#define NL (NS * NB)
#define CLOSED 255  /* unset is 0, as in the code */
#define NONE 15

/* daemon: ls is how far a link has come there */
#define OFFERED 1
#define READY   2   /* LinkReady has come */
#define ADDED   3   /* LinkAdded is in the publisher's socket */
#define JOINED  4   /* joins was raised */
#define OPENED  5   /* LinkOpen is in the subscription's socket */
#define WHOLE   6   /* and ArenaAdded */
#define FAILED  7   /* LinkFailed is */
byte gen, nblk = 1, bgen[NB], joins[NB], ls[NL], subgen[NS];
bool ready[NB], off[NB], arena[NB], due[NL];
#ifdef GIVEUP
bool shut[NB], wd[NB], pg[NL];     /* link socket closed; PublisherClose sent; PublisherGone sent */
#endif
/* publisher: control blocks */
byte base[NB], head[NB], retired; bool moved[NB], blk[NB], known[NL], bellP;
/* subscriptions: link pages */
byte cursor[NL]; bool started[NL], sleeping[NL], bellS[NS], dead[NS];

/* ---- daemon ---------------------------------------------------------------------------------- */

#define B(l) ((l) % NB)
#define S(l) ((l) / NB)
#define ALIVE(b) (bgen[b] == gen && (b) < nblk)
#ifdef GIVEUP
#define SHUT(l) shut[B(l)]
#define WD(l) wd[B(l)]
#define D_MORE(l) \
  :: atomic { ls[l] == READY && ALIVE(B(l)) && SHUT(l) -> ls[l] = FAILED } \
  :: atomic { (ls[l] == OFFERED || ls[l] == READY) && ALIVE(B(l)) && WD(l) -> ls[l] = FAILED } \
  :: atomic { (ls[l] == WHOLE || (ls[l] == OPENED && !arena[B(l)])) && ALIVE(B(l)) && WD(l) && !pg[l] -> pg[l] = true }
#else
#define SHUT(l) false
#define WD(l) false
#define D_MORE(l)
#endif
#define D_LINK(l) \
  :: atomic { ls[l] == 0 && ALIVE(B(l)) && off[B(l)] && subgen[S(l)] == gen && !dead[S(l)] && !WD(l) -> ls[l] = OFFERED } \
  :: atomic { ls[l] == READY && ALIVE(B(l)) && !SHUT(l) && !WD(l) -> ls[l] = ADDED } \
  :: atomic { ls[l] == ADDED && ALIVE(B(l)) -> joins[B(l)]++; ls[l] = JOINED } \
  :: atomic { ls[l] == JOINED && ALIVE(B(l)) -> due[l] = arena[B(l)]; ls[l] = OPENED } \
  :: atomic { ls[l] == OPENED && ALIVE(B(l)) && arena[B(l)] -> ls[l] = WHOLE } \
  D_MORE(l)
#define D_READY(b) :: atomic { ready[b] && !off[b] && ALIVE(b) -> off[b] = true }

proctype daemon() {
end:
  do
  :: atomic { gen < NG - 1 -> gen++ }          /* it dies, and another one is there */
  D_READY(1)
#if NB > 2
  D_READY(2)
#endif
#if NB > 3
  D_READY(3)
#endif
  D_LINK(1)
#if NL > 2
  D_LINK(2)
#endif
#if NL > 3
  D_LINK(3)
#endif
#if NL > 4
  D_LINK(4)
  D_LINK(5)
#endif
#if NL > 6
  D_LINK(6)
  D_LINK(7)
#endif
  od
}

/* ---- publisher ------------------------------------------------------------------------------- */

#define PICK(b) { s = 0; do :: s == NS -> break :: s < NS -> if :: ls[s * NB + (b)] >= ADDED && ls[s * NB + (b)] <= WHOLE && !known[s * NB + (b)] -> known[s * NB + (b)] = true; bellP = true :: else -> skip fi; s++ od; s = 0 }
/* dlx__writer_read_membership() */
inline membership() { if :: joins[b] != seen -> seen = joins[b]; PICK(b) :: else -> skip fi }

#ifdef NODEAD
#define GONE(s) false
#else
#define GONE(s) dead[s]
#endif
#ifdef NOSTARTED
#define STARTED(l) known[l]
#else
#define STARTED(l) (known[l] && started[l])
#endif
#if defined(NOREADER) && NS > 1
#define REPLACED(s) (STARTED(b) || STARTED(NB + b))
#else
#define REPLACED(s) STARTED((s) * NB + b)
#endif

/* have_rejoined(). Each condition stays true once it is, so reading all of them at once is the same
 * as one after the other. */
inline have_rejoined() {
  rejoin = false; s = 0;
  do
  :: s == NS -> break
  :: s < NS -> i = 0;
     do
     :: i == b -> break
     :: i < b -> if :: known[s * NB + i] && cursor[s * NB + i] != CLOSED && !GONE(s) && !REPLACED(s) -> rejoin = true :: else -> skip fi; i++
     od; s++
  od; s = 0; i = 0;
#ifdef NOREJOIN
  rejoin = false
#endif
}

/* dlx__writer_reclaim() */
inline reclaim() {
  membership(); x = CLOSED; i = 0;
  do
  :: i == NL -> break
  :: i < NL -> if :: known[i] && !GONE(i / NB) && cursor[i] < x -> x = cursor[i] :: else -> skip fi; i++
  od; i = 0;
  if :: x + H > n - 1 -> x = (n - 1 >= H -> n - 1 - H : 0) :: else -> skip fi;
  if :: x > retired -> retired = x :: else -> skip fi; x = 0
}
#define FREE (n - (retired > base[b] -> retired : base[b]) <= CAP)

/* dlx__publisher_check(): resume(), prepare(), go_on() */
inline check() {
  if
  :: gen != bgen[b] ->
#ifndef NODRAIN
     d_step { PICK(b) }
#endif
     atomic { nb = nblk; nblk++; bgen[nb] = gen; base[nb] = n - 1; head[nb] = n - 1 }  /* PublisherNew */
     ready[nb] = true;                                                              /* PublisherReady */
     if
#ifdef SLOW
     :: skip
#else
     :: off[nb] || bgen[nb] != gen                                                  /* Ok, or it died */
#endif
#ifdef GIVEUP
     :: !slow -> moved[nb] = true;
        d_step { slow = true; shut[nb] = true };
        if :: atomic { off[nb] -> wd[nb] = true } :: bgen[nb] != gen -> skip fi;    /* PublisherClose */
        goto given_up
#endif
     fi;
#ifndef OLDUNBLOCKED
     blk[b] = true;
#else
     blk[b] = false;
#endif
     moved[b] = true;
     d_step { b = nb; seen = 0; have_rejoined() };
given_up:
     nb = 0
  :: else -> skip
  fi
}
/* grow(), by dlx_alloc() before it is known where the message goes: the news is out before the
 * daemon's answer. */
inline grow() {
  atomic { gen == bgen[b] -> arena[b] = true; s = 0; do :: s == NS -> break :: s < NS -> if :: ls[s * NB + b] == OPENED -> ls[s * NB + b] = WHOLE :: else -> skip fi; s++ od; s = 0 }
}
#define ADDED_TO(s) (ls[(s) * NB + b] >= ADDED && ls[(s) * NB + b] <= WHOLE && !known[(s) * NB + b])
#if NS > 1
#define NEWS_P (ADDED_TO(0) || ADDED_TO(1))
#else
#define NEWS_P ADDED_TO(0)
#endif
#ifdef NOLOOK
#define HUNG_UP false
#else
#define HUNG_UP (gen != bgen[b])
#endif
#ifdef DIE
#define DEATH (dead[0] && !noted)
#else
#define DEATH false
#endif
/* dlx__publisher_link_wait() */
inline wait() {
  atomic { bellP || NEWS_P || HUNG_UP || DEATH -> bellP = false; noted = dead[0]; PICK(b); bellP = false };
  if :: HUNG_UP -> check() :: else -> skip fi
}

proctype publisher() {
  byte n = 1, b, nb, s, i, x, seen; bool rejoin, noted;
#ifdef GIVEUP
  bool slow;
#endif
  do
  :: n > LAST -> break
  :: else ->
     if :: gen != bgen[b] -> check() :: skip fi;
     if :: !arena[b] -> if :: grow() :: gen != bgen[b] -> check() fi :: skip fi;
again:
     do                                       /* dlx__publisher_link_rejoin() */
     :: rejoin -> blk[b] = true;
        d_step { membership(); have_rejoined() };
        if :: !rejoin -> blk[b] = false :: else -> wait() fi
     :: else -> break
     od;
     if
     :: FREE -> skip
     :: else ->
        do                                    /* waits for room */
        :: blk[b] = true;
           d_step { reclaim() };
           if :: FREE -> break :: else -> wait(); if :: rejoin -> goto again :: else -> skip fi fi
        od; blk[b] = false
     fi;
     if :: !arena[b] -> if :: grow() :: gen != bgen[b] -> check(); goto again fi :: else -> skip fi;
     head[b] = n;
     d_step { n++; membership() };
     d_step { i = 0; do :: i == NL -> break :: i < NL -> if :: known[i] && sleeping[i] -> bellS[i / NB] = true :: else -> skip fi; i++ od; i = 0 };
  od
}

/* ---- subscription ---------------------------------------------------------------------------- */

#define L(b) (me * NB + (b))
#define HERE(b) ((b) < nblk && bgen[b] == subgen[me] && !lost)
#ifdef GIVEUP
#define N_GONE(b) || (pg[L(b)] && !gone[b] && (rs[b] == 2 || rs[b] == 3) && (ls[L(b)] != WHOLE || ar[b]))
#define N_HUNG(b) || (shut[b] && !hung[b] && (rs[b] == 2 || rs[b] == 3))
#else
#define N_GONE(b)
#define N_HUNG(b)
#endif
#define N(b) (HERE(b) && ((rs[b] == 0 && ls[L(b)] >= OFFERED) || (rs[b] == 1 && ls[L(b)] >= OPENED) || (rs[b] > 1 && rs[b] < 4 && !ar[b] && ls[L(b)] == WHOLE) N_GONE(b)))
#if NB > 3
#define N3 || N(3)
#define H3 N_HUNG(3)
#else
#define N3
#define H3
#endif
#if NB > 2
#define N2 || N(2)
#define H2 N_HUNG(2)
#else
#define N2
#define H2
#endif
#define NEWS (N(1) N2 N3)
#define HANGUP (subgen[me] != gen && !lost && !NEWS)
#define BELL_ENDS (false N_HUNG(1) H2 H3)
#define WAKE (NEWS || HANGUP || lost || BELL_ENDS)

#ifdef LASTID
#define ORIGIN(i, b) ((i) == (b) - 1)
#else
#define ORIGIN(i, b) true
#endif
#ifdef AFTEROLD
#define NEWER(b) (after[b] == NONE)
#else
#define NEWER(b) true
#endif
/* start(). rs: 0 nothing, 1 offered, 2 opening, 3 open, 4 left */
inline start(b) {
  d_step {
    after[b] = NONE;
#ifndef NOAFTER
    i = 0;
    do
    :: i == b -> break
    :: i < b -> if :: rs[i] == 3 && bgen[i] != subgen[me] && ORIGIN(i, b) && NEWER(b) -> after[b] = i :: else -> skip fi; i++
    od; i = 0
#endif
  };
#ifdef CURSORLATE
  if :: after[b] != NONE && moved[after[b]] -> cursor[L(after[b])] = CLOSED; if :: blk[after[b]] -> bellP = true :: else -> skip fi :: else -> skip fi;
#endif
  cursor[L(b)] = base[b];
  started[L(b)] = true;
#ifndef NORING
  if :: blk[b] -> bellP = true :: else -> skip fi;
#endif
  rs[b] = 3
}

inline read_notifications(b) {
  if
  :: rs[b] == 0 -> atomic { if :: gen == subgen[me] && ls[L(b)] == OFFERED -> rs[b] = 1; ls[L(b)] = READY :: gen != subgen[me] -> rs[b] = 4 :: gen == subgen[me] && ls[L(b)] == FAILED -> rs[b] = 4 fi }
  :: rs[b] == 1 && ls[L(b)] == FAILED -> cursor[L(b)] = CLOSED; rs[b] = 4
  :: rs[b] == 1 && ls[L(b)] != FAILED ->
     rs[b] = 2;
#ifndef EARLYSTART
     if :: !due[L(b)] -> start(b) :: else -> skip fi
#else
     start(b)
#endif
  :: rs[b] > 1 && !ar[b] && ls[L(b)] == WHOLE ->
     ar[b] = true;
     if :: rs[b] == 2 -> start(b) :: else -> skip fi
#ifdef GIVEUP
  :: rs[b] > 1 && (ar[b] || ls[L(b)] != WHOLE) ->
     if :: rs[b] == 3 -> gone[b] = true :: else -> cursor[L(b)] = CLOSED; rs[b] = 4 fi
#endif
  fi
}

/* lose_daemon(): what is not open never will be */
inline lose(b) {
  if :: (rs[b] == 1 || rs[b] == 2) ->
#ifndef NOCLOSED
        cursor[L(b)] = CLOSED;
        if :: rs[b] == 2 -> bellP = true :: else -> skip fi;
#endif
        rs[b] = 4
     :: else -> skip
  fi
}

#define SUCCEEDS(b) (rs[b] == 3 && after[b] == c)
#if NB > 3
#define SUC3 || SUCCEEDS(3)
#else
#define SUC3
#endif
#if NB > 2
#define SUC2 || SUCCEEDS(2)
#else
#define SUC2
#endif
#ifdef EARLYLEAVE
#define SUCCESSOR true
#else
#define SUCCESSOR (SUCCEEDS(1) SUC2 SUC3)
#endif
#ifdef GIVEUP
#define CUT_OFF (lost || bgen[c] != subgen[me])
#define ENDS ((gone[c] || hung[c]) && (gone[c] || CUT_OFF))
#else
#define ENDS false
#endif

/* dlx__subscription_detach(), dlx__reader_follow() */
inline detach() {
  i = cursor[L(c)];
  cursor[L(c)] = CLOSED;
  if :: blk[c] -> bellP = true :: else -> skip fi;
  d_step {
    rs[c] = 4; h = 0;
    do
    :: h == NB -> break
    :: h < NB -> if :: rs[h] == 3 && after[h] == c -> after[h] = NONE; assert(base[h] <= i) :: else -> skip fi; h++
    od; h = 0; i = 0
  }
}

proctype subscription(byte me) {
  byte h, d, i, c, rs[NB], after[NB]; bool mv, lost, ar[NB];
#ifdef GIVEUP
  bool gone[NB], hung[NB];
#endif
  d_step { rs[0] = 3; ar[0] = true; i = 0; do :: i == NB -> break :: i < NB -> after[i] = NONE; i++ od; i = 0 }
  do
  :: d == LAST -> break
#ifdef DIE
  :: me == 0 -> dead[me] = true; break
#endif
  :: N(1) -> read_notifications(1)
#if NB > 2
  :: N(2) -> read_notifications(2)
#endif
#if NB > 3
  :: N(3) -> read_notifications(3)
#endif
#ifdef GIVEUP
  :: BELL_ENDS -> d_step { i = 0; do :: i == NB -> break :: i < NB -> if :: shut[i] && (rs[i] == 2 || rs[i] == 3) -> hung[i] = true :: else -> skip fi; i++ od; i = 0 }
#endif
  :: d < LAST && HANGUP ->
     lose(1);
#if NB > 2
     lose(2);
#endif
#if NB > 3
     lose(3);
#endif
     lost = true
  :: lost -> atomic { subgen[me] = gen; lost = false }     /* dlx__subscription_reconnect() */
  :: d < LAST ->                                           /* try_take() */
     if
     :: rs[0] == 3 && after[0] == NONE -> c = 0
     :: rs[1] == 3 && after[1] == NONE -> c = 1
#if NB > 2
     :: rs[2] == 3 && after[2] == NONE -> c = 2
#endif
#if NB > 3
     :: rs[3] == 3 && after[3] == NONE -> c = 3
#endif
     :: else -> WAKE; goto next
     fi;
     d_step { h = head[c]; mv = moved[c] };
     if
     :: h > cursor[L(c)] && ar[c] ->
        atomic { d++; assert(cursor[L(c)] + 1 == d); assert(d > retired); cursor[L(c)] = d };
        if :: blk[c] -> bellP = true :: else -> skip fi
     :: h > cursor[L(c)] && !ar[c] ->
        assert(!lost && bgen[c] == subgen[me]);            /* else it will never come: lost */
        WAKE
     :: h == cursor[L(c)] && mv ->
        if :: SUCCESSOR || ENDS -> detach() :: else -> WAKE fi
     :: h == cursor[L(c)] && !mv ->
        sleeping[L(c)] = true;
        if :: head[c] == cursor[L(c)] && !moved[c] -> atomic { bellS[me] || WAKE -> bellS[me] = false } :: else -> skip fi;
        sleeping[L(c)] = false
     :: h < cursor[L(c)] -> assert(false)
     fi;
next: atomic { h = 0; mv = false; c = 0 }
  od
}

init {
  byte i;
  atomic {
    off[0] = true; ready[0] = true; arena[0] = true;
    do :: i == NS -> break :: i < NS -> ls[i * NB] = WHOLE; known[i * NB] = true; started[i * NB] = true; run subscription(i); i++ od;
    run publisher(); run daemon()
  }
}
