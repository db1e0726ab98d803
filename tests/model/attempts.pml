/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts of a work queue: what becomes of a cell that is given back, whose lease ends, whose
 * owner dies, and which nobody finishes. NW workers that hold up to HELD messages each, M messages,
 * NE entries, of which each has a payload of its own. A message is tried MAX times; then it is a
 * dead letter: who finds that claims it like any message, copies it, and says that it is done. A
 * dead letter whose copy failed as well goes to the next worker, until the attempt is LIMIT: then
 * who would return it counts it as dead without a copy.
 *
 * Loads of a cell and compare-and-swaps are steps of their own. How workers sleep, and how they
 * tell up to where everything is done, is in claims.pml; here who has nothing to do waits for a
 * word to change.
 *
 * What is claimed: each message is done or dead, once, and counted so; no two claims of a message
 * have the same attempt; no message is tried more than MAX times; a handle of an earlier claim,
 * also of the same worker, changes nothing; what was renewed is not taken from its owner by who
 * looked before; a payload is whole while a worker tries or copies it.
 *
 * -DLEASE       any other worker may return what it has seen claimed for long; one that has not
 *               changed meanwhile. A claim is renewed up to RENEWALS times
 * -DDIE         worker 0 may die at any step
 * -DKEEPS       a worker keeps what it holds until its owner says: nothing is given back
 *
 * mutants, which must fail:
 * -DNOATTEMPT   the attempt is not part of the word, but beside it
 * -DNORETURNS   what is returned counts no attempt (SATURATES below LIMIT)
 * -DSATURATES   at LIMIT the attempt stays, and the message is claimed again
 * -DDEADNOHOLD  a dead letter becomes DONE at once by who finds it, and is copied then
 * -DCOUNTFIRST  a dead letter is counted, then DONE is tried
 * -DNORECHECK   gen is not looked at again after the hold word (LEASE)
 * -DRENEWAPART  renewals are counted beside the cell
 * -DRENEWWRAPS  renewals wrap sooner than others look: two of them are none      (RENEWALS=2)
 * -DRENEWBLIND  a claim is renewed by a store
 */
#ifndef NW
#define NW 2
#endif
#ifndef M
#define M 2
#endif
#ifndef NE
#define NE 1
#endif
#ifndef HELD
#define HELD 2
#endif
#ifndef MAX
#define MAX 2
#endif
#ifndef LIMIT
#define LIMIT (MAX + 1)
#endif
#ifndef RENEWALS
#define RENEWALS 1
#endif
#define AT(n) ((n) % NE)

/* A cell: message (0: never claimed), attempt, renewals, state. */
#define RETURNED 0
#define BY(w) ((w) + 1)
#define DONE 9
#define CLAIMED(c) (STATE(c) != RETURNED && STATE(c) != DONE)
#define WORD(n, attempt, renewed, state) ((((n) * 8 + (attempt)) * 4 + (renewed)) * 16 + (state))
#define N(c) ((c) / 512)
#define ATTEMPT(c) (((c) / 64) & 7)
#define RENEWED(c) (((c) / 16) & 3)
#define STATE(c) ((c) & 15)

short cell[NE]; byte done[NW], hold[NW * HELD]; /* workers */
byte gen[NE], payload[NE];                      /* publisher */
bool dead0;                                     /* kernel */
#ifdef NOATTEMPT
byte attempt_of[NE];
#define SHOWN(c, e) attempt_of[e]
#define KEPT_IN_WORD(a) 0
#else
#define SHOWN(c, e) ATTEMPT(c)
#define KEPT_IN_WORD(a) (a)
#endif
#ifdef RENEWAPART
byte renewed[NE];
#define RENEWALS_OF(e) renewed[e]
#else
#define RENEWALS_OF(e) 0
#endif

/* What is checked. */
byte nclaims[M + 1], outcome[M + 1], counted[M + 1], nrenewed[NE];
#define WAS_DONE 1
#define WAS_DEAD 2

inline end_as(n, what) { assert(!outcome[n]); outcome[n] = what }

#if NW > 2
#define FURTHEST (done[0] > done[1] -> (done[0] > done[2] -> done[0] : done[2]) : (done[1] > done[2] -> done[1] : done[2]))
#else
#define FURTHEST (done[0] > done[1] -> done[0] : done[1])
#endif
#define GONE 0
proctype publisher() {
  byte n = 1, w;
  do
  :: n > M -> break
  :: else ->
     if
     :: n > NE -> /* it retires what is done, then looks at who holds it */
        atomic { FURTHEST >= n - NE -> gen[AT(n)] = GONE };
        do
        :: w < NW * HELD && (hold[w] != n - NE || (dead0 && w < HELD)) -> w++
        :: w == NW * HELD -> w = 0; break
        od
     :: else -> skip
     fi;
     atomic { gen[AT(n)] = n; payload[AT(n)] = n; n++ }
  od
}

/* The attempt that a claim of message n is, if the cell is c. */
#define NEXT(c, n, e) (N(c) == n -> SHOWN(c, e) : 0)
#define IS_FREE(c, n) (N(c) < n || (N(c) == n && STATE(c) == RETURNED))
#define OVER(n) (N(cell[AT(n)]) > n || (N(cell[AT(n)]) == n && STATE(cell[AT(n)]) == DONE))
#ifdef LEASE
#ifdef SATURATES /* which has no end */
#define MAY_RETURN(c) (CLAIMED(c) && STATE(c) != BY(me) && nclaims[N(c)] < LIMIT + 3)
#else
#define MAY_RETURN(c) (CLAIMED(c) && STATE(c) != BY(me))
#endif
#else
#define MAY_RETURN(c) (STATE(c) == BY(0) && dead0 && me != 0)
#endif

#ifdef NORETURNS
#define AND_ONE 0
#else
#define AND_ONE 1
#endif
/* CLAIMED becomes RETURNED, in one step, if the cell is still `from`. */
inline return_it(from, e) {
  atomic {
    if
    :: cell[e] == from ->
#ifdef SATURATES
       cell[e] = WORD(N(from), (ATTEMPT(from) < LIMIT -> ATTEMPT(from) + 1 : LIMIT), 0, RETURNED)
#else
       if
       :: SHOWN(from, e) >= LIMIT ->
          cell[e] = WORD(N(from), ATTEMPT(from), 0, DONE);
          end_as(N(from), WAS_DEAD); counted[N(from)]++
       :: else -> cell[e] = WORD(N(from), KEPT_IN_WORD(ATTEMPT(from) + AND_ONE), 0, RETURNED)
       fi;
#endif
#ifdef NOATTEMPT
       is_mine = true
#endif
    :: else -> skip
    fi
  }
#ifdef NOATTEMPT
  ;
  atomic { if :: is_mine -> attempt_of[e] = attempt_of[e] + 1; is_mine = false :: else -> skip fi }
#endif
}
#define HAS(s) (has[s] != 0)
#define DEAD_LETTER(s) (try[s] >= MAX)

inline drop(s) { atomic { hold[me * HELD + s] = 0; has[s] = 0; try[s] = 0; seq[s] = 0 } }
inline take(s) {
  atomic { n = gen[e]; c = cell[e] };
  if
  :: n != 0 && IS_FREE(c, n) ->
#ifdef NOATTEMPT
     atomic { try[s] = NEXT(c, n, e) };
#endif
     atomic {
       if
       :: cell[e] == c ->
#ifndef NOATTEMPT
          try[s] = NEXT(c, n, e);
#else
          if :: N(c) < n -> attempt_of[e] = 0 :: else -> skip fi;
#endif
#ifdef DEADNOHOLD
          if
          :: DEAD_LETTER(s) -> cell[e] = WORD(n, try[s], 0, DONE); end_as(n, WAS_DEAD); copies = true
          :: else ->
#endif
          has[s] = WORD(n, KEPT_IN_WORD(try[s]), 0, BY(me)); cell[e] = has[s];
#if !defined(SATURATES) && !defined(NOATTEMPT)
          assert(nclaims[n] == try[s]);
#endif
          nclaims[n]++; seq[s] = nclaims[n]; nrenewed[e] = 0
#ifdef DEADNOHOLD
          fi
#endif
       :: else -> try[s] = 0
       fi
     };
#ifdef DEADNOHOLD
     if :: copies -> hold[me * HELD + s] = n; assert(payload[e] == n); atomic { hold[me * HELD + s] = 0; copies = false; try[s] = 0 } :: else -> skip fi;
#endif
     if
     :: HAS(s) ->
        hold[me * HELD + s] = n;
#ifndef NORECHECK
        /* A lease that ended before the hold word was there: another one has done it. */
        if :: gen[e] != n -> drop(s) :: else -> skip fi
#endif
     :: else -> skip
     fi
  :: else -> skip
  fi;
  atomic { n = 0; c = 0; e = 0 }
}
/* It tries the message, or copies the dead letter, then says that it is done. */
inline finish(s) {
  atomic { n = N(has[s]); e = AT(n); assert(payload[e] == n) };
#ifdef COUNTFIRST
  atomic { if :: DEAD_LETTER(s) -> counted[n]++ :: else -> skip fi };
#endif
  atomic {
    if
    :: cell[e] == has[s] -> /* else NOT_FOUND: a lease had ended */
       assert(seq[s] == nclaims[n]);
       cell[e] = WORD(n, ATTEMPT(has[s]), RENEWED(has[s]), DONE);
       if
       :: DEAD_LETTER(s) -> end_as(n, WAS_DEAD); is_mine = true
       :: else -> end_as(n, WAS_DONE)
       fi
    :: else -> skip
    fi
  };
#ifndef COUNTFIRST
  atomic { if :: is_mine -> counted[n]++; is_mine = false :: else -> skip fi };
#else
  is_mine = false;
#endif
  let_go(s)
}
inline let_go(s) {
  atomic {
    assert(payload[AT(N(has[s]))] == N(has[s]));
    drop(s); n = 0; e = 0
  }
}
inline give_back(s) {
  atomic { n = N(has[s]); e = AT(n) };
  return_it(has[s], e);
  let_go(s)
}
#ifdef RENEWWRAPS
#define ONE_MORE(x) (1 - (x))
#else
#define ONE_MORE(x) ((x) + 1)
#endif
#ifdef LEASE
inline renew(s) {
  atomic { n = N(has[s]); e = AT(n) };
#ifdef RENEWAPART
  atomic { c = cell[e] };
  atomic { if :: c == has[s] -> renewed[e] = renewed[e] + 1; nrenewed[e]++ :: else -> skip fi;
           left[s]++; c = 0; n = 0; e = 0 }
#else
  atomic {
    if
#ifdef RENEWBLIND
    :: true ->
#else
    :: cell[e] == has[s] ->
#endif
       assert(seq[s] == nclaims[n]);
       has[s] = WORD(n, ATTEMPT(has[s]), ONE_MORE(RENEWED(has[s])), BY(me)); cell[e] = has[s];
       nrenewed[e]++
#ifndef RENEWBLIND
    :: else -> skip
#endif
    fi; left[s]++; n = 0; e = 0
  }
#endif
}
#endif
/* Looks at a claim of another; later, if it is still the same, it returns it. */
inline look(x) {
  atomic { seen = cell[x]; at = x; saw_renewed = RENEWALS_OF(x); renewed_then = nrenewed[x] }
}
inline expire() {
  atomic {
    if :: saw_renewed == RENEWALS_OF(at) -> skip :: else -> seen = 0 fi };
  if
  :: seen != 0 ->
     atomic { if :: cell[at] == seen -> assert(renewed_then == nrenewed[at]) :: else -> skip fi;
              n = at };
     return_it(seen, n)
  :: else -> skip
  fi;
  atomic { seen = 0; n = 0; at = 0; saw_renewed = 0; renewed_then = 0 }
}
#if HELD == 2
#define EACH_SLOT(guard, action) \
  :: atomic { guard(0) -> skip }; action(0) \
  :: atomic { guard(1) -> skip }; action(1)
#else
#define EACH_SLOT(guard, action) :: atomic { guard(0) -> skip }; action(0)
#endif
#define CLAIMABLE(x) (gen[x] != 0 && IS_FREE(cell[x], gen[x]))
#if HELD == 2
#define HAS_NONE (!HAS(0) && !HAS(1))
#else
#define HAS_NONE (!HAS(0))
#endif
#define CAN_RENEW(s) (HAS(s) && left[s] < RENEWALS)
inline body() {
  do
  :: atomic { CLAIMABLE(0) && !HAS(0) -> e = 0 }; take(0)
#if NE > 1
  :: atomic { CLAIMABLE(1) && !HAS(0) -> e = 1 }; take(0)
#endif
#if HELD > 1
  :: atomic { CLAIMABLE(0) && HAS(0) && !HAS(1) -> e = 0 }; take(1)
#if NE > 1
  :: atomic { CLAIMABLE(1) && HAS(0) && !HAS(1) -> e = 1 }; take(1)
#endif
#endif
  EACH_SLOT(HAS, finish)
#ifndef KEEPS
  EACH_SLOT(HAS, give_back)
#endif
#ifdef LEASE
  EACH_SLOT(CAN_RENEW, renew)
#endif
  :: atomic { seen == 0 && MAY_RETURN(cell[0]) -> look(0) }
#if NE > 1
  :: atomic { seen == 0 && MAY_RETURN(cell[1]) -> look(1) }
#endif
  :: atomic { seen != 0 -> skip }; expire()
  :: atomic { done[me] < M && OVER(done[me] + 1) -> done[me] = done[me] + 1 }
  :: atomic { done[me] == M && HAS_NONE && seen == 0 -> break }
  od
}
#define LOCALS \
  short has[HELD], seen, c; byte seq[HELD], try[HELD], left[HELD], n, e, at, saw_renewed, \
      renewed_then; bool is_mine, copies
proctype worker(byte me) { LOCALS; body() }
proctype mortal(byte me) {
  LOCALS;
  { body() } unless { atomic { dead0 ->
    has[0] = 0; try[0] = 0; seq[0] = 0; left[0] = 0;
#if HELD > 1
    has[1] = 0; try[1] = 0; seq[1] = 0; left[1] = 0;
#endif
    seen = 0; c = 0; n = 0; e = 0; at = 0; saw_renewed = 0; renewed_then = 0; is_mine = false } }
}
proctype check() {
  byte n = 1, w;
  atomic {
    do :: w == NW -> break :: w < NW -> (done[w] == M || (dead0 && w == 0)); w++ od;
    do
    :: n > M -> break
    :: else ->
       assert(outcome[n] != 0);
       assert(outcome[n] == WAS_DEAD || counted[n] == 0); assert(counted[n] <= 1); n++
    od
  }
}
init {
  byte i;
  atomic {
    run publisher(); run check();
#ifdef DIE
    run mortal(0); i = 1;
#endif
    do :: i == NW -> break :: i < NW -> run worker(i); i++ od
  };
#ifdef DIE
  if :: dead0 = true :: skip fi
#endif
}
