/* SPDX-License-Identifier: Apache-2.0 */
/* Records in the ring: put, announce, retire, free, take, hold, sleep, join and close. One
 * publisher, NR readers with a link each, a ring of NE entries, one of which is for the mark
 * that ends the stream, NB blocks of memory, LAST messages. `window` and `kept` are those of
 * ring/writer.h.
 *
 * Every access to a shared word is one step, as with seq_cst. An invalid end state is a lost
 * wake-up or a wait for ever. What is lost, torn, or written to while it is held is a failed
 * assertion.
 *
 * `gen` of an entry is n; n + GONE; or n + END, if n is one after the last message.
 *
 * -DGATING           the publisher waits for reliable readers; otherwise it drops
 * -DREL0=1 -DREL1=1  that reader is reliable
 * -DLATEST0=1 -DLATEST1=1   that reader takes the newest message only
 * -DHIST=h           readers begin with up to h messages that are there already
 * -DB=2              a reader holds the message before while it takes the next one
 * -DKEEPS            and while it sleeps, too
 * -DTWO              a reader takes two messages at once, with one fence (B=2)
 * -DK=k              the publisher announces after k messages
 * -DDIE              reader 0 may die while it takes or holds
 * -DNOLOSS           there is memory for all: a reader loses nothing
 *
 * mutants, which must fail:
 * -DZERO             gen of a retired entry is 0
 * -DNORECHECK        gen is not looked at again
 * -DHOLDLATE         hold word after the second look at gen
 * -DLATECOPY         words are copied after the second look at gen
 * -DFREEFIRST        hold words are read, then gen is marked
 * -DNOGATE           cursors of reliable links are not looked at
 * -DEARLY            what is `window` behind is retired though a reliable link has not passed it
 * -DSTALE            `passed` is kept when a link joins
 * -DCURSORFIRST      reliable: cursor, then hold word
 * -DPASSFIRST        not reliable: cursor, then hold word: loses what nobody needed to drop
 * -DUNJOINED         reliable: no second look at messages that were there when it joined
 * -DFULL             `limit` leaves no entry for the mark
 * -DNOROOM           `limit` does not look at what may be written again
 * -DBELLFIRST        tickets are looked at, then gen is stored
 * -DARMLATE          gen is looked at, then the ticket is raised
 * -DNOPICKUP         `joins` is not looked at after gen was stored
 * -DNOMEMBER         `joins` is not looked at before reclaim (with K=3)
 * -DNORING           `blocked` is not looked at after a hold word was cleared
 * -DNORINGTAKE       `blocked` is not looked at after a take
 * -DNOJOINCHECK      a joiner believes `head` (with K=3)
 * -DNOFLUSH          the publisher waits for room before it has announced
 * -DDEADHOLDS        holds of the dead count
 *
 * What is not needed, so it passes: -DHEADFIRST (`head` before gen), -DOPENFIRST (a joiner reads
 * `head` before `joins` was raised, and looks at the entries after it).
 */
#ifndef NR
#define NR 1
#endif
#ifndef NE
#define NE 4
#endif
#ifndef WINDOW
#define WINDOW (NE - 2)
#endif
#ifndef KEPT
#define KEPT 1
#endif
#ifndef HIST
#define HIST 0
#endif
#ifndef B
#define B 1
#endif
#ifndef NB
#define NB (KEPT + 1 + NR * B)
#endif
#ifndef LAST
#define LAST 6
#endif
#ifndef K
#define K 1
#endif
#ifndef REL0
#define REL0 0
#endif
#ifndef REL1
#define REL1 0
#endif
#ifndef LATEST0
#define LATEST0 0
#endif
#ifndef LATEST1
#define LATEST1 0
#endif
#define RELIABLE(r) ((r) == 0 -> REL0 : REL1)
#define LATEST(r)   ((r) == 0 -> LATEST0 : LATEST1)
#define GONE 128
#define END 64
#define NUM(g) ((g) & 63)
#define AT(n) ((n) % NE)
#define CLOSED 255 /* of a cursor; 0: not started */

byte gen[NE], w1[NE], w2[NE], payload[NB], head, oldest = 1; bool blocked; /* publisher */
byte joins; bool added[NR];                                                /* daemon */
byte hold[NR * B], cursor[NR]; bool sleeping[NR];                          /* readers */
bool dead[NR], bellP, bellS[NR];                                           /* kernel */

/* ---- publisher ------------------------------------------------------------------------------ */

#define FREE 0
#define LIVE 1
#define RETIRED 2
/* What it remembers. */
byte first = 1, reusable = 1, passed, told, seen, st[NB], bn[NB], block_of[NE];
bool known[NR], noted;

#ifdef FULL
#define FREE_TO (reusable + NE - 1)
#else
#ifdef NOROOM
#define FREE_TO 200
#else
#define FREE_TO (reusable + NE - 2)
#endif
#endif
#ifdef GATING
#define LIMIT (FREE_TO < passed + WINDOW -> FREE_TO : passed + WINDOW)
#else
#define LIMIT FREE_TO
#endif
#define HAS_ROOM (n - 1 < LIMIT)
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define BEHIND(x) (n - 1 > (x) -> n - 1 - (x) : 0)
#define ALIVE(r) (known[r] && !dead[r])

/* dlx__writer_read_membership(), forget_passed() */
inline membership() {
  if
  :: joins != seen ->
     d_step {
       seen = joins; r = 0;
#ifndef STALE
       passed = MIN(passed, first - 1);
#endif
       do :: r == NR -> break :: r < NR -> known[r] = added[r]; r++ od; r = 0
     }
  :: else -> skip
  fi
}
/* dlx__writer_ring_sleepers() */
inline tickets() {
  r = 0;
  do
  :: r == NR -> break
  :: r < NR -> if :: known[r] && sleeping[r] -> bellS[r] = true :: else -> skip fi; r++
  od; r = 0
}
/* look_at_cursors(): `all` is what every link has passed */
inline look() {
  all = CLOSED; rel = CLOSED; r = 0;
  do
  :: r == NR -> break
  :: r < NR ->
     if
     :: ALIVE(r) && !LATEST(r) ->
        d_step {
          g = cursor[r]; all = MIN(all, g);
#ifndef NOGATE
          if :: RELIABLE(r) -> rel = MIN(rel, g) :: else -> skip fi;
#endif
          g = 0
        }
     :: else -> skip
     fi; r++
  od;
  atomic { r = 0; passed = MIN(rel, n - 1); rel = 0 }
}
/* dlx__writer_retire(), dlx__writer_retire_in() */
inline retire() {
  if
  :: first <= to ->
     do
     :: first > to -> break
     :: else ->
        d_step {
#ifdef ZERO
          gen[AT(first)] = 0;
#else
          gen[AT(first)] = first + GONE;
#endif
          st[block_of[AT(first)]] = RETIRED; first++
        }
     od;
     oldest = first
  :: else -> skip
  fi; to = 0
}
/* free_unheld() */
inline scan() {
  i = 0;
  do
  :: i == NB -> break
  :: i < NB ->
     if
     :: st[i] == RETIRED ->
        unheld = true; r = 0;
        do
        :: r == NR * B -> break
        :: r < NR * B ->
#ifdef DEADHOLDS
           if :: known[r / B] && hold[r] == bn[i] -> unheld = false :: else -> skip fi; r++
#else
           if :: ALIVE(r / B) && hold[r] == bn[i] -> unheld = false :: else -> skip fi; r++
#endif
        od; r = 0;
        if :: unheld -> st[i] = FREE :: else -> skip fi
     :: else -> skip
     fi; i++
  od; i = 0; unheld = false
}
/* dlx__writer_reclaim() */
inline reclaim() {
#ifndef NOMEMBER
  membership();
#endif
  look();
  d_step {
    to = BEHIND(KEPT);
#ifdef GATING
    to = MIN(to, passed);
#endif
    if :: drop -> to = MIN(to, first) :: else -> to = MIN(to, all) fi; all = 0
  };
#ifdef FREEFIRST
  d_step {
    i = 0;
    do
    :: i == NB -> break
    :: i < NB -> if :: st[i] == LIVE && bn[i] <= to -> st[i] = RETIRED :: else -> skip fi; i++
    od; i = 0
  };
  scan();
  d_step {
    i = 0;
    do :: i == NB -> break :: i < NB -> if :: st[i] == RETIRED -> st[i] = LIVE :: else -> skip fi;
       i++ od; i = 0
  };
  do
  :: first > to -> break
  :: else -> d_step { gen[AT(first)] = first + GONE;
     if :: bn[block_of[AT(first)]] == first && st[block_of[AT(first)]] == LIVE ->
        st[block_of[AT(first)]] = RETIRED :: else -> skip fi; first++ }
  od; to = 0;
#else
  retire();
#endif
  reusable = first;
  membership();
#ifndef FREEFIRST
  scan();
#endif
}
/* behind_window() */
inline retire_behind() {
#if defined(GATING) && !defined(EARLY)
  to = MIN(BEHIND(WINDOW), passed);
#else
  to = BEHIND(WINDOW);
#endif
  retire()
}
/* dlx__writer_make_room() */
inline make_room() {
  membership(); look(); all = 0;
  if :: HAS_ROOM -> skip :: else -> retire_behind(); reusable = first fi
}
/* dlx__writer_announce() */
inline announce() {
  d_step { head = n - 1; told = n - 1; reusable = first };
#ifndef NOPICKUP
  membership();
#endif
  tickets();
  retire_behind()
}
#define FLUSH if :: told < n - 1 -> announce() :: else -> skip fi
/* An entry is written only if its message is GONE. */
#ifdef ZERO
#define OVER(n) true
#else
#define OVER(n) (n <= NE || gen[AT(n)] == n - NE + GONE)
#endif
#define FIND d_step { b = NB; i = 0; do :: i == NB -> break :: i < NB && st[i] == FREE -> b = i; break :: else -> i++ od; i = 0 }
#define WAIT atomic { bellP || (known[0] && dead[0] && !noted) -> bellP = false; noted = dead[0] }

proctype publisher() {
  byte n = 1, b, i, r, g, to, was, all, rel; bool unheld, drop;
  do
  :: n > LAST -> break
  :: else ->
     if :: goto pass :: FIND fi;              /* memory may be wanted at any time */
     if :: b < NB -> goto found :: else -> skip fi;
pass:
     was = first;
     reclaim();
     FIND;
     if
     :: b < NB -> skip
     :: b == NB && (!drop || was < first) -> drop = true; goto pass
     :: else ->
#ifdef GATING
        drop = false;
        if
        :: !blocked ->
#ifndef NOFLUSH
           FLUSH;
#endif
           blocked = true
        :: else -> WAIT
        fi;
        goto pass
#else
        assert(false)                         /* there are blocks enough */
#endif
     fi;
     d_step { drop = false; was = 0 };
     if :: blocked -> blocked = false :: else -> skip fi;
found:
     if
     :: HAS_ROOM -> skip
     :: else ->
#ifndef NOFLUSH
        FLUSH;
#endif
room:
        if :: HAS_ROOM -> skip :: else -> make_room() fi;
        if
        :: HAS_ROOM -> skip
        :: else ->
#ifdef GATING
           if :: !blocked -> blocked = true :: else -> WAIT fi;
           goto room
#else
           assert(false)
#endif
        fi;
        if :: blocked -> blocked = false :: else -> skip fi
     fi;
     assert(OVER(n) && (n <= NE || n - NE < reusable));
     d_step { st[b] = LIVE; bn[b] = n; payload[b] = n; block_of[AT(n)] = b };
     w1[AT(n)] = n;
     d_step { w2[AT(n)] = b; b = 0 };
#ifdef BELLFIRST
     membership(); tickets();
     gen[AT(n)] = n; n++;
     d_step { head = n - 1; told = n - 1; reusable = first };
     retire_behind()
#else
#ifdef HEADFIRST
     head = n;
#endif
     d_step { gen[AT(n)] = n; n++ };
     if :: (n - 1) % K == 0 || n > LAST -> announce() :: else -> skip fi
#endif
  od;
#ifdef BELLFIRST
  membership(); tickets();
#endif
  assert(OVER(n));
  gen[AT(n)] = n + END;                       /* mark_final(): room was kept for it */
#ifndef NOPICKUP
  membership();
#endif
#ifndef BELLFIRST
  tickets()
#endif
}

/* ---- readers -------------------------------------------------------------------------------- */

#ifdef GATING
inline ring_if_blocked() { if :: blocked -> bellP = true :: else -> skip fi }
#else
inline ring_if_blocked() { skip }
#endif
/* dlx__reader_release() */
inline release(x) {
  hold[me * B + x] = 0;
#ifndef NORING
  ring_if_blocked()
#endif
}
inline set_cursor(x) { cursor[me] = x; ring_if_blocked() }
/* It dies, and what it holds counts no more. */
#ifdef DIE
#define MAY_DIE if :: me == 0 -> atomic { dead[0] = true; bellP = true }; goto out :: skip fi
#else
#define MAY_DIE skip
#endif
/* What came after a reliable reader joined is not retired before it has passed it. */
#ifdef UNJOINED
#define SURE RELIABLE(me)
#else
#define SURE (RELIABLE(me) && n > joined)
#endif
#ifdef NOLOSS
#define LOSE(x) assert(false)
#else
/* A reliable reader loses nothing that came after it joined, nor what is kept. */
#define LOSE(x) assert(!RELIABLE(me) || (HIST > KEPT && n <= joined)); missed = missed + (x)
#endif

proctype reader(byte me) {
  byte n, g, h, x, y, x2, y2, cur, k, prev, prevy, taken, missed, joined, start; bool two;
#ifdef OPENFIRST
  h = head;
#endif
  added[me] = true; atomic { joins = joins + 1 };     /* the daemon, before it tells the reader */
#ifndef OPENFIRST
  h = head;                                           /* dlx__reader_start(), find_newest() */
#endif
#ifndef NOJOINCHECK
  do
  :: g = gen[AT(h + 1)];
     if
     :: NUM(g) == h + 1 && !(g & END) -> h++
     :: NUM(g) > h + 1 -> h = head
     :: else -> break
     fi
  od;
#endif
  atomic { joined = h; cur = (h > HIST -> h - HIST : 0); start = cur; h = 0; g = 0 };
  set_cursor(cur);
  do
  :: atomic { n = cur + 1; g = gen[AT(n)] };
     if
     :: g == n + END -> break
     :: NUM(g) < n ->                                 /* dlx__reader_arm() */
#if B == 2 && !defined(KEEPS)
        if
        :: prev != 0 -> assert(payload[prevy] == prev); release(1 - k); prev = 0; prevy = 0
        :: else -> skip
        fi;
#endif
#ifdef ARMLATE
        g = gen[AT(n)]; sleeping[me] = true;
#else
        sleeping[me] = true; g = gen[AT(n)];
#endif
        if :: NUM(g) < n -> atomic { bellS[me] -> bellS[me] = false } :: else -> skip fi;
        sleeping[me] = false
     :: g == n ->                                     /* dlx__reader_take() */
        if
        :: LATEST(me) ->                              /* skip_to_newest() */
           g = gen[AT(n + 1)];
           if
           :: NUM(g) > n ->
              h = head;
              if
              :: h > n ->
                 d_step { missed = missed + h - n; cur = h - 1; n = h; h = 0; g = gen[AT(n)] };
                 if :: g != n -> goto next :: else -> skip fi
              :: else -> skip
              fi
           :: else -> skip
           fi
        :: else -> skip
        fi;
#ifndef LATECOPY
        x = w1[AT(n)]; y = w2[AT(n)];                 /* hold() */
#endif
#ifdef CURSORFIRST
        if :: SURE -> cursor[me] = n :: else -> skip fi;
#endif
#ifdef PASSFIRST
        if :: !RELIABLE(me) -> cursor[me] = n :: else -> skip fi;
#endif
#ifndef HOLDLATE
        hold[me * B + k] = n;
#endif
        MAY_DIE;
        cur = n;
#ifdef TWO
        g = gen[AT(n + 1)];
        if
        :: g == n + 1 -> x2 = w1[AT(n + 1)]; y2 = w2[AT(n + 1)]; hold[me * B + 1 - k] = n + 1;
           two = true; cur = n + 1
        :: else -> skip
        fi;
#endif
        if
        :: SURE ->
           g = n;
#ifndef CURSORFIRST
           cursor[me] = cur
#endif
        :: else ->
#ifdef NORECHECK
           g = n;
#else
           g = gen[AT(n)];                            /* drop_gone() */
#endif
#ifdef HOLDLATE
           hold[me * B + k] = n;
#endif
#ifdef TWO
           if
           :: two && g != n ->                        /* the first is gone: perhaps the second is, too */
              release(k); LOSE(1); d_step { k = 1 - k; n++; x = x2; y = y2; two = false;
                 g = gen[AT(n)] }
           :: else -> skip
           fi;
#endif
           cursor[me] = cur
        fi;
#ifndef NORINGTAKE
        ring_if_blocked();
#endif
        if
        :: g != n -> release(k); LOSE(1)
        :: else ->
#ifdef LATECOPY
           x = w1[AT(n)]; y = w2[AT(n)];
#endif
           d_step { assert(x == n); assert(payload[y] == n); taken++ };
           MAY_DIE;
#ifdef TWO
           if
           :: two ->
              d_step { assert(x2 == n + 1); assert(payload[y2] == n + 1); taken++ };
              release(k); assert(payload[y2] == n + 1); release(1 - k)
           :: else -> assert(payload[y] == n); release(k)
           fi
#else
#if B == 2
           if :: prev != 0 -> assert(payload[prevy] == prev); release(1 - k) :: else -> skip fi;
           d_step { prev = n; prevy = y; k = 1 - k }
#else
           assert(payload[y] == n);
           release(k)
#endif
#endif
        fi
     :: else ->                                       /* look_further(): gone, or the entry has a later one */
        x = oldest; y = head;
        d_step { h = n + 1; if :: x > h && x <= y + 1 -> h = x :: else -> skip fi };
        LOSE(h - n);
        cur = h - 1; set_cursor(cur)
     fi;
next: atomic { n = 0; g = 0; x = 0; y = 0; x2 = 0; y2 = 0; h = 0; two = false }
  od;
#if B == 2
  if :: prev != 0 -> assert(payload[prevy] == prev); release(1 - k) :: else -> skip fi;
#endif
  assert(cur == LAST && taken + missed == LAST - start);
  set_cursor(CLOSED);                                 /* dlx__reader_close() */
out: skip
}

init { byte i; atomic { run publisher(); do :: i == NR -> break :: i < NR -> run reader(i);
   i++ od } }
