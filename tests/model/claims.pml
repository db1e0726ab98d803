/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A work queue on the ring: the workers of one group claim messages by compare-and-swap in a claims
 * page that only they write.  The publisher never reads that page: each worker tells in its own link
 * page (`done`) up to which message everything is done, and the publisher takes the maximum.
 *
 * Every access to a shared word is one step.  A lost wake-up, or a wait for ever, is an invalid end
 * state.
 *
 * what is claimed:
 *   - no message is lost: each is processed, and the publisher hears of it (it ends only then)
 *   - nobody processes a message that was processed, unless who did so has died
 *   - a payload is not written to while somebody holds it, also after DONE
 *   - LONG: a message does not wait while a worker sleeps: worker 0 keeps its first message until
 *     all others are done
 *
 * variants:
 * -DNW=3 -DLAST=.. -DNE=.. -DNB=..   workers, messages, entries (and cells), payloads
 * -DDIE        worker 0 may die at any step
 * -DREJECT     each worker may give one message back; -DREJECTLEAVES: and worker 0 then leaves
 * -DLATENEWS   a worker that has work reads what the daemon says at any later time
 * -DLONG       as above
 * -DLATER      worker 1 comes when worker 0, which was alone, has died
 * -DPDIE       the publisher may die between any two messages, without END
 * -DLEASE      worker 0 is never told dead, but its claims expire at any time (it goes on, slowly)
 *
 * mutants, which must fail:
 * -DPLAIN        claims by a load and a store
 * -DNOTAG        a cell has no message number: DONE is free again
 * -DADVFIRST     looks how far everything is done, then stores DONE
 * -DCLAIMPASSES  what is claimed counts as done for the publisher
 * -DDEADDONE     what the dead had claimed counts as done
 * -DNOLEFT       nobody hears of the death of a worker
 * -DNOHOLD       no hold word: only the claim pins
 * -DUNHOLDFIRST  DONE, then the hold word is cleared, then the payload is used (a caller's mistake)
 * -DDEADHOLDS    the publisher counts what the dead hold
 * -DNORING       `done` is raised, and `blocked` not looked at
 * -DBELLFIRST    tickets are looked at, then gen is stored
 * -DARMLATE      gen is looked at, then the ticket is raised
 * -DNODISARM     who wakes up leaves its ticket as it was              (LONG)
 * -DNOCHAIN      who took a message passes no wake-up on               (LONG)
 * -DNOLOOK        the publisher rings who has died                    (DIE)
 * -DLEFTFIRST     the daemon tells the group of a death before it raises `leaves` (DIE)
 * -DPASSEDONLY    who hears of a death looks only at what it has passed (DIE)
 * -DRINGNONE     nobody is rung if anybody is awake                    (LONG)
 * -DNOENDNEWS    who finishes the last message tells nobody
 * -DENDLEAVES    a worker leaves at END though others have yet to finish (DIE)
 * -DNOREJECTNEWS who gives a message back tells nobody                 (REJECT REJECTLEAVES)
 * -DBYCOUNT      what is RETURNED is looked for only if a count of returns has changed (REJECT DIE)
 * -DNOJOINSCAN   who joins looks for no claims of the dead             (LATER)
 * -DFALSEDEATH   a slow worker is taken for dead
 * -DLEASEBLIND   DONE is stored without looking whose the claim is now (LEASE)
 */
#ifndef NW
#define NW 2
#endif
#ifndef NE
#define NE 4
#endif
#ifndef NB
#define NB 3
#endif
#ifndef LAST
#define LAST 5
#endif
#define AT(n) ((n) % NE)
#define GONE 128
#define END 64
#define NUM(g) ((g) & 63)
#define RETURNED 0
#define BY(w) ((w) + 1)
#define DONE 9

byte gen[NE], blk[NE], payload[NB]; bool blocked;            /* publisher */
byte cn[NE], cs[NE] = DONE;                                  /* claims page: number, state */
byte hold[NW], done[NW]; bool asleep[NW], fresh[NW];         /* link pages; fresh: ticket != rung */
bool dead[NW], bellP, bell[NW], news[NW], leaves, told0, pgone;       /* kernel and daemon */
byte ndone, newest; bool processed[LAST + 1];                /* what is checked */
#if defined(DIE) || defined(LATER)
bool by0[LAST + 1];
#define REDELIVERED(n) (dead[0] && by0[n])
#else
#define REDELIVERED(n) false
#endif
bool over;
#ifdef BYCOUNT
byte returned;
#define COUNT_RETURNED returned++
#define NOTHING_RETURNED (returned == counted)
#define COUNTED counted = returned
#else
#define COUNT_RETURNED skip
#define NOTHING_RETURNED false
#define COUNTED skip
#endif

/* ---- publisher ------------------------------------------------------------------------------ */
#define FREE 0
#define LIVE 1
#define RETIRED 2
byte st[NB], bn[NB], oldest = 1, reusable = 1;

/* look_at_cursors(): a group is as far as the worker of it that got furthest */
inline look() {
  atomic {                                      /* each only rises: one step for all of them */
    do :: w < NW -> if :: done[w] > d -> d = done[w] :: else -> skip fi; w++ :: else -> break od; w = 0
  }
}
#ifdef DEADHOLDS
#define HOLDS(w, n) (hold[w] == n)
#else
#define HOLDS(w, n) (hold[w] == n && !dead[w])
#endif
inline reclaim() {
  look();
  do
  :: atomic { oldest <= d -> assert(gen[AT(oldest)] == oldest);
        gen[AT(oldest)] = oldest + GONE; st[blk[AT(oldest)]] = RETIRED; oldest++ }
  :: atomic { else -> reusable = oldest; d = 0; break }
  od;
  atomic {                                      /* nobody begins to hold what is GONE */
    do
    :: i == NB -> i = 0; break
    :: i < NB ->
       if
       :: st[i] == RETIRED ->
          do :: w < NW && !HOLDS(w, bn[i]) -> w++ :: else -> break od;
          if :: w == NW -> st[i] = FREE :: else -> skip fi; w = 0
       :: else -> skip
       fi; i++
    od
  }
}
/* One sleeper of the group for each message; the load of its ticket, then its bell. */
inline ring_one() {
#if (defined(DIE) || defined(LATER)) && !defined(NOLOOK)
  gone0 = leaves;                               /* dlx__writer_read_membership(): who has died is not rung */
#endif
  do
#ifdef RINGNONE
  :: atomic { w < NW && !held -> if :: !asleep[w] && !dead[w] -> w = NW :: asleep[w] && fresh[w] -> fresh[w] = false; held = true :: else -> w++ fi }
#else
  :: atomic { w < NW && !held -> if :: asleep[w] && fresh[w] && !(w == 0 && gone0) -> fresh[w] = false; held = true :: else -> w++ fi }
#endif
  :: atomic { held -> bell[w] = !dead[w]; held = false; w = 0; break }
  :: atomic { w == NW -> w = 0; break }
  od
}
inline ring_all() {
  do
  :: atomic { w < NW && !held -> if :: asleep[w] && fresh[w] -> fresh[w] = false; held = true :: else -> w++ fi }
  :: atomic { held -> bell[w] = !dead[w]; held = false; w++ }
  :: atomic { w == NW -> w = 0; break }
  od
}
#define FIND atomic { b = NB; i = 0; do :: i == NB -> break :: i < NB && st[i] == FREE -> b = i; break :: else -> i++ od; i = 0 }
#define ROOM (n <= reusable + NE - 2 && b < NB)

proctype publisher() {
  byte n = 1, b, i, d, w; bool held, gone0;
  do
  :: n > LAST -> break
  :: else ->
#ifdef PDIE
     if :: goto died :: skip fi;
#endif
room: skip;
     FIND;
     if :: ROOM -> skip :: else -> reclaim(); FIND fi;
     if
     :: atomic { ROOM -> blocked = false }
     :: else -> if :: !blocked -> blocked = true :: else -> atomic { bellP -> bellP = false } fi; goto room
     fi;
#ifdef BELLFIRST
     ring_one();
#endif
     atomic {
       assert(gen[AT(n)] == 0 || gen[AT(n)] == n - NE + GONE);
       st[b] = LIVE; bn[b] = n; payload[b] = n; blk[AT(n)] = b; b = 0;
       gen[AT(n)] = n; newest = n; n++
     };
#ifndef BELLFIRST
     ring_one()
#endif
  od;
#ifndef LONG
  gen[AT(n)] = n + END;
  ring_all();
#endif
  do                                            /* dlx_publisher_drain() */
  :: look();
     if
     :: d == LAST -> break
     :: else -> if :: !blocked -> blocked = true :: else -> atomic { bellP -> bellP = false } fi
     fi
  od;
  atomic {
    blocked = false; over = true; d = 0; i = 1;
    do :: i > LAST -> break :: i <= LAST -> assert(processed[i]); i++ od
  };
#ifdef LONG
  gen[AT(n)] = n + END;
  ring_all();
#endif
  goto out;
#ifdef PDIE
died:                                           /* nobody retires anything any more; the daemon tells */
  pgone = true;
  atomic { do :: w == NW -> w = 0; break :: w < NW -> news[w] = true; w++ od };
#endif
out: skip
}

/* ---- workers -------------------------------------------------------------------------------- */
inline ringP() { atomic { if :: blocked -> bellP = true :: else -> skip fi } }
/* GroupWake: the daemon sends news to every other member */
inline tell() {
  atomic { do :: i == NW -> i = 0; break :: i < NW -> if :: i != me && !dead[i] -> news[i] = true :: else -> skip fi; i++ od }
}
/* How far is everything done?  A later number: that was retired, so it was done. */
#ifdef CLAIMPASSES
#define OVER(n) (cn[AT(n)] > n || (cn[AT(n)] == n && cs[AT(n)] != RETURNED))
#else
#define OVER(n) (cn[AT(n)] > n || (cn[AT(n)] == n && cs[AT(n)] == DONE))
#endif
inline advance() {
  was = d;
  do
  :: atomic { OVER(d + 1) -> d++ }
  :: atomic { else ->
       if
       :: d > was ->
          was = 0; done[me] = d; raised = true;
#ifndef NOENDNEWS
          if :: gen[AT(d + 1)] == d + 1 + END || (pgone && d == newest) -> tell() :: else -> skip fi
#endif
       :: else -> was = 0; raised = false
       fi; break }
  od;
#ifndef NORING
  if :: atomic { raised -> raised = false; if :: blocked -> bellP = true :: else -> skip fi } :: else -> skip fi
#else
  raised = false
#endif
}
#ifdef LONG
#define WORK if :: me == 0 && !had -> had = true; (ndone == LAST - 1) :: else -> skip fi
#else
#define WORK skip
#endif
#ifdef DEADDONE
#define TO_OTHERS DONE
#else
#define TO_OTHERS RETURNED
#endif
#ifdef FALSEDEATH
#define TOLD true
#else
#define TOLD told0
#endif
#ifdef LEASE
#define MINE (cn[AT(n)] == n && cs[AT(n)] == BY(me) && epoch[AT(n)] == e)
byte epoch[NE];                                 /* the attempt, part of the word */
bool expired;
#define EXPIRED expired
#define CLAIMED epoch[AT(n)] = epoch[AT(n)] + 1; e = epoch[AT(n)]
#else
#define MINE (cn[AT(n)] == n && cs[AT(n)] == BY(me))
#define CLAIMED skip
#define EXPIRED false
#endif

#ifdef NOTAG
#define IS_FREE(n) (cn[AT(n)] < n || cs[AT(n)] == RETURNED || cs[AT(n)] == DONE)
#else
#define IS_FREE(n) (cn[AT(n)] < n || (cn[AT(n)] == n && cs[AT(n)] == RETURNED))
#endif
/* Load and compare-and-swap in one step: one that fails begins again. */
#ifdef PLAIN
#define CLAIM skip
#else
#define CLAIM cn[AT(n)] = n; cs[AT(n)] = BY(me); CLAIMED
#endif
#ifdef LONG
#define CHK(x) chk = x
#else
#define CHK(x) skip
#endif
inline work() {
  skip;
#ifdef LATER
#ifndef NOJOINSCAN
  do                                            /* who joins: claims whose owners hold no lock */
  :: atomic { me == 1 && i < NE -> if :: cs[i] == BY(0) && dead[0] -> cs[i] = RETURNED :: else -> skip fi; i++ }
  :: atomic { else -> i = 0; break }
  od;
  advance();
#endif
#endif
top:
  atomic {
#ifdef LATENEWS
    if :: news[me] -> news[me] = false; scan = true :: skip fi;
#else
    if :: news[me] -> news[me] = false; scan = true :: else -> skip fi;
#endif
    if :: scan -> scan = false :: else -> n = cur + 1; g = gen[AT(n)]; goto looked fi
  };
#ifdef PASSEDONLY
#define SCANNED(i) (cn[i] <= cur)
#else
#define SCANNED(i) true
#endif
  do                                            /* all cells, also of messages that it has yet to pass */
  :: atomic { me != 0 && TOLD && i < NE -> if :: cs[i] == BY(0) && SCANNED(i) -> cs[i] = TO_OTHERS; COUNT_RETURNED :: else -> skip fi; i++ }
  :: atomic { else -> i = d + 1; break }
  od;
  do
  :: atomic { i > cur || NOTHING_RETURNED -> i = 0; COUNTED; break }
  :: atomic { i <= cur ->
        if
        :: cn[AT(i)] == i && cs[AT(i)] == RETURNED -> n = i; i = 0; scan = true; CLAIM; goto claimed
        :: else -> i++
        fi }
  od;
  advance();
  atomic { n = cur + 1; g = gen[AT(n)] };
looked: skip;
  if
  :: atomic { g == n -> g = 0;
        if :: IS_FREE(n) -> CLAIM; goto claimed :: else -> cur = n; n = 0; goto top fi }
  :: atomic { NUM(g) > n || g == n + GONE -> cur = n; g = 0; n = 0; goto top }
  :: g == n + END || (NUM(g) < n && pgone) ->
     if :: atomic { NUM(g) < n -> g = gen[AT(n)]; if :: g == n -> goto looked :: else -> skip fi } :: else -> skip fi;
     advance();
#ifdef ENDLEAVES
     goto out;
#endif
     if :: atomic { d == n - 1 -> assert(ndone == d); goto out } :: else -> skip fi;
     atomic { g = 0; n = 0; news[me] -> news[me] = false; scan = true; goto top }
  :: atomic { NUM(g) < n && !pgone -> g = 0; n = 0 }
  fi;
  /* nothing there: dlx__reader_arm() */
#ifdef ARMLATE
  g = gen[AT(cur + 1)];
  atomic { asleep[me] = true; fresh[me] = true; CHK(false) };
#else
  atomic { asleep[me] = true; fresh[me] = true; CHK(false) };
  g = gen[AT(cur + 1)];
#endif
  if
  :: atomic { NUM(g) <= cur && bell[me] -> g = 0; bell[me] = false; CHK(false) }
  :: atomic { NUM(g) <= cur && news[me] && !bell[me] -> g = 0; news[me] = false; scan = true; CHK(true) }
  :: atomic { NUM(g) > cur -> g = 0; CHK(true) }
  fi;
#ifndef NODISARM
  atomic { asleep[me] = false; fresh[me] = false };
#endif
  goto top;

claimed: skip;
#ifdef PLAIN
  atomic { cn[AT(n)] = n; cs[AT(n)] = BY(me) };
#endif
#ifndef NOHOLD
  hold[me] = n;
#endif
  atomic {
    assert(gen[AT(n)] == n); b = blk[AT(n)]; if :: n > cur -> cur = n :: else -> skip fi;
#if defined(LONG) && !defined(NOCHAIN)
    if
    :: chk && gen[AT(cur + 1)] == cur + 1 && cn[AT(cur + 1)] < cur + 1 -> tell()
    :: else -> skip
    fi;
#endif
    CHK(false)
  };
#ifdef REJECT
  if
  :: !rejected ->
     rejected = true;
     cs[AT(n)] = RETURNED;
#ifdef BYCOUNT
     COUNT_RETURNED;
#endif
#ifndef NOREJECTNEWS
     tell();
#endif
     hold[me] = 0; ringP();
#ifdef REJECTLEAVES
     if :: me == 0 -> goto out :: else -> skip fi;
#endif
     atomic { n = 0; b = 0; scan = true; goto top }
  :: skip
  fi;
#endif
  WORK;
  atomic {
    assert(payload[b] == n); assert(!processed[n] || REDELIVERED(n) || EXPIRED);
    if :: !processed[n] -> ndone++ :: else -> skip fi;
#if defined(DIE) || defined(LATER)
    by0[n] = (me == 0);
#endif
    processed[n] = true
  };
#ifdef ADVFIRST
  advance();
  cs[AT(n)] = DONE;
#else
#ifdef LEASEBLIND
  atomic { cn[AT(n)] = n; cs[AT(n)] = DONE };
#else
  atomic { if :: MINE -> cs[AT(n)] = DONE :: else -> skip fi };
#endif
#ifdef UNHOLDFIRST
  hold[me] = 0;
#endif
  advance();
#endif
  atomic { assert(payload[b] == n); b = 0; n = 0; e = 0; hold[me] = 0;     /* held beyond DONE */
           if :: blocked -> bellP = true :: else -> skip fi };
  goto top
}
#ifdef BYCOUNT
#define SEEN , counted
#else
#define SEEN
#endif
#define LOCALS byte n, g, b, cur, d, i, was, e SEEN; bool chk, scan, rejected, had, raised
proctype worker(byte me) {
  LOCALS;
#ifdef LATER
  dead[0];
#endif
  work();
out: skip
}
proctype mortal(byte me) {
  LOCALS;
  { work() } unless { atomic { dead[me] ->     /* fewer states: what it had is of no account */
    n = 0; g = 0; b = 0; cur = 0; d = 0; i = 0; was = 0; e = 0; chk = false; scan = false;
    rejected = false; had = false; raised = false; bell[me] = false; news[me] = false } };
out: skip
}

#if defined(DIE) || defined(LATER)
proctype killer() {
  byte w;
#ifdef LATER
  atomic { dead[0] = true; bellP = true }; leaves = true
#else
  if
  :: atomic { dead[0] = true; bellP = true };
#ifdef LEFTFIRST
     atomic { told0 = true; w = 1; do :: w == NW -> w = 0; break :: w < NW -> news[w] = true; w++ od };
     leaves = true
#else
     leaves = true;                             /* the daemon: first the publishers' word, then GroupLeft */
#ifndef NOLEFT
     atomic { told0 = true; w = 1; do :: w == NW -> w = 0; break :: w < NW -> news[w] = true; w++ od }
#endif
#endif
  :: skip
  fi
#endif
}
#endif
#ifdef LEASE
proctype killer() {                             /* a lease expires: any other worker gives it to all */
  byte w;
  do
  :: over -> break
  :: w < NE && !expired ->
     atomic { if :: cs[w] == BY(0) -> expired = true; cs[w] = RETURNED; news[1] = true; news[0] = true :: else -> skip fi; w++ }
  :: w == NE || expired -> break
  od
}
#endif
init {
  byte i;
  atomic {
    run publisher();
#if defined(DIE) || defined(LATER) || defined(LEASE)
    run killer();
#endif
#if defined(DIE) || defined(LATER)
    run mortal(0); i = 1;
#endif
    do :: i == NW -> break :: i < NW -> run worker(i); i++ od
  }
}
