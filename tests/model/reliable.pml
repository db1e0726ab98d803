/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher that must not drop (blocks), reliable subscribers that join lazily
 * (cursor UNSET between join and first store), the sleeping/blocked flags and bells both ways,
 * detach and death while holding.  Each shared word access is one step (seq_cst).
 * Deadlock (invalid end state) = lost wake-up or blocked for ever.
 *
 * -DASWRITTEN     retire before looking at cursors (the order that loses messages)      must fail
 * -DNOEPOCH2      epoch read before retiring only   passes: the pick-up after `head =` already covers it
 * -DNOEPOCH1      epoch read after retiring only    passes, same reason
 * -DRELORDER      lease=0 'release', then load of blocked: the load passes the store (x86 TSO) must fail with -DNR=1 -DNS=1 -DH=0 -DLAST=3
 * -DNOCLOSE       closed-but-holding subscription leaves its cursor gating                     must fail (with -DHOLDFOREVER)
 * -DSKIPNORING    no bell after clearing a lease whose gen did not match      must fail with -DNR=1 -DNS=3 -DLAST=6 -DLATEST=0
 * -DLATEST=k      subscriber k is a non-gating 'latest' one that may keep a message for ever
 * -DNOHUP         publisher's poll does not contain hang-ups                                   must fail
 * -DBELLFIRST     publisher looks at sleeping flags before storing head                         must fail
 * -DNOPICKUP      publisher picks up new links only in reclaim, not after head store            must fail
 */
#ifndef NR
#define NR 2
#endif
#ifndef NS
#define NS 3
#endif
#ifndef H
#define H 1        /* history */
#endif
#ifndef LAST
#define LAST 4
#endif
#define RS NS      /* ring entries >= slots */
#define RING(n) ((n) % RS)
#define UNSET 255
#define CLOSED 254

byte head, ring[RS], gen[NS], payload[NS]; bool blocked;      /* publisher */
byte epoch; bool joined[NR]; byte hj[NR];                     /* daemon; hj is a ghost: head at the join */
byte lease[NR * NS], cursor[NR]; bool sleeping[NR];           /* subscribers */
bool gone[NR];                                                /* hang-up or pidfd */
bool bellP, bellS[NR];
byte seen, slotseq[NS]; bool freeslot[NS], known[NR], notedgone[NR];  /* private to the publisher */
bool pdone;

inline read_membership() {
  if
  :: epoch != seen -> atomic { seen = epoch; r = 0; do :: r == NR -> break :: r < NR -> known[r] = joined[r]; r++ od }
  :: else -> skip
  fi
}

/* minpassed: every known live link's cursor is at least this (UNSET: 0) */
inline read_cursors() {
  minp = CLOSED; r = 0;
  do :: r == NR -> break
     :: r < NR ->
        if :: (known[r] && !gone[r]) ->
              c = cursor[r];
              d_step { if :: c == UNSET -> minp = 0 :: c != UNSET && c < minp -> minp = c :: else -> skip fi }
           :: else -> skip
        fi; r++
  od; c = 0
}

inline pass() {
#ifndef NOEPOCH1
  read_membership();
#endif
#ifndef ASWRITTEN
  read_cursors();
#else
  minp = CLOSED;
#endif
  i = 0;
  do :: i == NS -> break
     :: i < NS -> if :: (!freeslot[i] && gen[i] != 0 && slotseq[i] + H <= head && slotseq[i] <= minp) -> gen[i] = 0 :: else -> skip fi; i++
  od;
#ifndef NOEPOCH2
  read_membership();
#endif
#ifdef ASWRITTEN
  read_cursors();
#endif
  i = 0;
  do :: i == NS -> break
     :: i < NS ->
        if :: (!freeslot[i] && gen[i] == 0 && slotseq[i] <= minp) ->
              unheld = true; r = 0;
              do :: r == NR -> break
                 :: r < NR -> if :: (known[r] && !gone[r] && lease[r * NS + i] != 0) -> unheld = false :: else -> skip fi; r++
              od;
              if :: unheld -> freeslot[i] = true :: else -> skip fi
           :: else -> skip
        fi; i++
  od;
  minp = 0; unheld = false;
  d_step { s = NS; i = 0; do :: i == NS -> break :: i < NS && freeslot[i] -> s = i; i = NS :: i < NS && !freeslot[i] -> i++ od; i = 0; r = 0 }
}


#define NEWGONE0 (known[0] && gone[0] && !notedgone[0])
#if NR > 1
#define NEWGONE1 (known[1] && gone[1] && !notedgone[1])
#else
#define NEWGONE1 false
#endif

proctype publisher() {
  byte s, seq, i, r, minp, c; bool unheld;
  seq = 1;
  do
  :: seq > LAST -> break
  :: else ->
     d_step { s = NS; i = 0; do :: i == NS -> break :: i < NS && freeslot[i] -> s = i; i = NS :: i < NS && !freeslot[i] -> i++ od; i = 0 }
     if :: s < NS -> skip
        :: else ->
           pass();
           if :: s < NS -> skip
              :: else ->
                 blocked = true;
                 do :: pass();
                       if :: s < NS -> break
                          :: else ->
#ifdef NOHUP
                             atomic { (bellP) -> bellP = false }
#else
                             atomic { (bellP || NEWGONE0 || NEWGONE1) -> bellP = false;
                                r = 0; do :: r == NR -> break :: r < NR -> if :: known[r] && gone[r] -> notedgone[r] = true :: else -> skip fi; r++ od; r = 0 }
#endif
                       fi
                 od;
                 blocked = false
           fi
     fi;
     freeslot[s] = false; slotseq[s] = seq;
     payload[s] = 0; payload[s] = seq;
     gen[s] = seq; ring[RING(seq)] = s;
#ifdef BELLFIRST
     read_membership();
     r = 0; do :: r == NR -> break :: r < NR -> if :: (known[r] && sleeping[r]) -> bellS[r] = true :: else -> skip fi; r++ od; r = 0;
     head = seq;
#else
     head = seq;
#ifndef NOPICKUP
     read_membership();
#endif
     r = 0; do :: r == NR -> break :: r < NR -> if :: (known[r] && sleeping[r]) -> bellS[r] = true :: else -> skip fi; r++ od; r = 0;
#endif
     seq++; s = 0
  od;
  pdone = true
}

#ifdef LATEST
#define SETCUR(x) if :: me == LATEST -> cursor[me] = CLOSED :: else -> cursor[me] = x fi
#else
#define SETCUR(x) cursor[me] = x
#endif
inline ringP() { if :: blocked -> bellP = true :: else -> skip fi }

proctype subscriber(byte me) {
  byte h, n, s, cur, leak, lk; bool b;
  atomic { joined[me] = true; hj[me] = head; epoch++ }
  if :: me == 0 -> gone[me] = true; goto out          /* dies joined, cursor never set */
     :: skip
  fi;
  h = head;
  if :: h >= H -> cur = h - H :: h < H -> cur = 0 :: cur = h fi;   /* with history, or from now */
  SETCUR(cur); ringP();
  do
  :: cur == LAST -> break
  :: else ->
     h = head;
     if
     :: h == cur ->
        sleeping[me] = true;
        if :: head == cur -> atomic { (bellS[me]) -> bellS[me] = false } :: else -> skip fi;
        sleeping[me] = false
     :: else ->
#ifdef LATEST
        if :: me == LATEST -> cur = h - 1 :: else -> skip fi;   /* a 'latest' subscription never gates: cursor CLOSED */
#endif
        n = cur + 1; s = ring[RING(n)];
        lease[me * NS + s] = n;
        if
        :: gen[s] != n ->
#ifdef LATEST
           assert(me == LATEST || n <= hj[me]);
#else
           assert(n <= hj[me]);                        /* only what was past at the join may be missed */
#endif
           lease[me * NS + s] = 0;
           cur = n; SETCUR(n);
#ifndef SKIPNORING
           ringP()
#endif
        :: else ->
           assert(payload[s] == n);
           cur = n; SETCUR(n);
#ifdef RINGCUR
           ringP();
#endif
           if :: skip
              :: me == 0 -> gone[me] = true; goto out  /* dies holding */
              :: me == 0 ->                            /* closes while holding */
#ifndef NOCLOSE
                 cursor[me] = CLOSED; ringP();
#endif
#ifdef HOLDFOREVER
                 goto out;
#else
                 assert(payload[s] == n);
                 lease[me * NS + s] = 0; ringP();
                 gone[me] = true; goto out
#endif
           fi;
           assert(payload[s] == n);
#ifdef LATEST
           if :: me == LATEST && leak == 1 && n == LAST - 1 -> goto out :: me == LATEST && leak == 0 -> leak = 1 :: skip fi;  /* keeps up to two for ever */
           if :: leak == 1 && me == LATEST && lk == 0 -> lk = 1; goto nxt :: else -> skip fi;
#endif
#ifdef RELORDER
           b = blocked; lease[me * NS + s] = 0;
           if :: b -> bellP = true :: else -> skip fi; b = false
#else
           lease[me * NS + s] = 0; ringP()
#endif
        fi
     fi;
nxt: h = 0; n = 0; s = 0
  od;
out: skip
}

init {
  byte i;
  atomic {
    i = 0; do :: i == NS -> break :: i < NS -> freeslot[i] = true; i++ od;
    i = 0; do :: i == NR -> break :: i < NR -> cursor[i] = UNSET; i++ od; i = 0;
    run publisher();
    do :: i == NR -> break :: i < NR -> run subscriber(i); i++ od
  }
}
