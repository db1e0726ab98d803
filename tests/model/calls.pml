/* SPDX-License-Identifier: Apache-2.0 */
/* Calls: a caller publishes requests to a group of workers, which publish their replies into rings
 * of their own, one each, that only the caller reads: its inbox. A worker publishes the reply, then
 * says that the request is done. A slot of the caller is taken by a call from its begin until no
 * reply to it can come any more and the inbox was looked at since, so that a ring of F entries has
 * room for every reply. Claims are one step here, see claims.pml, and who waits waits for a word to
 * change.
 *
 * Call c is request c. F calls are in flight, C are made (3 or 4), R replies fit into a
 * ring.
 *
 * What is claimed: each call ends once, in a reply, WORKER_GONE or a time-out; what comes later is
 * dropped; a reply is given to no other call; WORKER_GONE is said only of what has no reply and will
 * have none; a worker finds room for its reply; a request that is not idempotent begins at most
 * once; without time-outs each call ends, too (PATIENT).
 *
 * -DDIE         worker 0 may die at any step
 * -DIDEM        requests are idempotent: who finds one after a death gives it to all
 * -DPATIENT     the caller gives nothing up
 * -DGIVEBACK    a worker may give a request back before it begins
 * -DATONCE      a slot is free at the end of its call, and every ring is looked at before each
 *               begin: needs R=F+1, one more for each request that a worker holds (max_held)
 *
 * mutants, which must fail:
 * -DDONEFIRST   a request is done, then the reply is published
 * -DREDELIVER   who finds a request after a death gives it to all, idempotent or not        (DIE)
 * -DDEADLEFT    who finds one that is not idempotent leaves it as it is                     (DIE)
 * -DBYORDER     a reply is that to the oldest call
 * -DSLOTEARLY   a slot is free at a time-out
 * -DSLOTATREPLY a slot is free when the reply was taken; another one may come          (DIE IDEM)
 * -DDRAINFIRST  looks at the inbox, then at what is done
 * -DGONEFIRST   a worker is dead: looks at its hold word, and not at its replies            (DIE)
 * -DRETURNFIRST a request is given back, then its hold word is cleared             (DIE GIVEBACK)
 * -DNODRAIN     no look at the inbox before a begin                                      (ATONCE)
 * -DNOSTATE     `state` of a request that was answered stays as it was; one that is
 *               redelivered is run again                                       (ATONCE DIE IDEM)
 */
#ifndef C
#define C 3
#endif
#ifndef F
#define F 2
#endif
#ifndef R
#define R F
#endif
#define NW 2

#define NONE 0
#define BY(w) ((w) + 1)
#define RETURNED 8
#define DONE 9
byte cell[C + 1], hold[NW], done;                     /* workers; done: the largest of theirs */
byte reply[NW * R], nput[NW], ntaken[NW];             /* inbox: put by workers, taken by the caller */
byte nrequests; bool cancelled[C + 1];                /* caller */
bool dead0, told0, over;                              /* kernel, daemon */

#define PENDING 1
#define REPLIED 2
#define WORKER_GONE 3
#define LATE 4
byte status[C + 1];                                   /* caller: how each call ended */
bool begun[C + 1], answered[C + 1], frees[C + 1];     /* what is checked; a slot that is free again */

/* ---- caller --------------------------------------------------------------------------------- */
inline end_call(x, how) {
  assert(status[x] == PENDING);
  status[x] = how;
#ifdef ATONCE
#ifndef NOSTATE
  cancelled[x] = true;
#endif
  free_slot(x)
#endif
}
inline free_slot(x) { if :: !frees[x] -> frees[x] = true; nflight-- :: else -> skip fi }
/* It takes what is in the ring of worker w, or of all from w on. */
inline drain(last) {
  do
  :: atomic { w <= last && ntaken[w] < nput[w] ->
        c = reply[w * R + ntaken[w] % R]; ntaken[w]++;
#ifdef BYORDER
        x = 1;
        do :: x <= C && status[x] != PENDING -> x++ :: else -> break od;
        if :: x <= C -> assert(x == c); end_call(x, REPLIED) :: else -> skip fi; x = 0;
#else
        if
        :: status[c] == PENDING ->
           end_call(c, REPLIED);
#ifdef SLOTATREPLY
           free_slot(c)
#endif
        :: else -> skip /* dropped, and counted */
        fi;
#endif
        c = 0 }
  :: atomic { w <= last && ntaken[w] == nput[w] -> w++ }
  :: atomic { w > last -> w = 0; break }
  od
}
#ifdef SLOTEARLY
#define FREE_IF_EARLY(x) ; free_slot(x)
#else
#define FREE_IF_EARLY(x)
#endif
#define TIME_OUT(x) \
  :: atomic { status[x] == PENDING -> end_call(x, LATE); cancelled[x] = true FREE_IF_EARLY(x) }
proctype caller() {
  byte nflight, w, c, d, x; bool gone0;
  do
  :: atomic { nflight < F && nrequests < C -> skip };
#if defined(ATONCE) && !defined(NODRAIN)
     drain(NW - 1);
#endif
     atomic { nflight++; nrequests++; status[nrequests] = PENDING }
  :: atomic { ntaken[0] < nput[0] || ntaken[1] < nput[1] -> skip };
     drain(NW - 1)
#ifndef PATIENT
  TIME_OUT(1)
  TIME_OUT(2)
  TIME_OUT(3)
#if C > 3
  TIME_OUT(4)
#endif
#endif
  :: atomic { done > d ->                             /* passed requests: first `done`, then replies */
#ifndef DRAINFIRST
       d = done
#endif
     };
     drain(NW - 1);
     atomic {
#ifdef DRAINFIRST
       d = done;
#endif
       x = 1;
       do
       :: x > d -> break
       :: x <= d ->
          if
          :: status[x] == PENDING -> assert(!answered[x]); end_call(x, WORKER_GONE)
          :: else -> skip
          fi;
          free_slot(x); x++
       od; x = 0 }
#if defined(DIE) && !defined(IDEM)
  :: atomic { dead0 && !gone0 -> gone0 = true };      /* its pidfd */
#ifndef GONEFIRST
     drain(0);
#endif
     atomic {
       if
       :: hold[0] != 0 && status[hold[0]] == PENDING ->
          assert(!answered[hold[0]]); x = hold[0]; end_call(x, WORKER_GONE); x = 0
       :: else -> skip
       fi }
#endif
  :: atomic { nrequests == C && nflight == 0 && done == C ->
       x = 1; do :: x > C -> break :: x <= C -> assert(status[x] > PENDING); x++ od;
       over = true; break }
  od
}

/* ---- workers -------------------------------------------------------------------------------- */
#define IS_FREE(x) (x <= nrequests && (cell[x] == NONE || cell[x] == RETURNED))
#if C > 3
#define FIRST(is) (is(1) -> 1 : (is(2) -> 2 : (is(3) -> 3 : (is(4) -> 4 : 0))))
#else
#define FIRST(is) (is(1) -> 1 : (is(2) -> 2 : (is(3) -> 3 : 0)))
#endif
#define OLDEST FIRST(IS_FREE)
#define IS_OF_THE_DEAD(x) (cell[x] == BY(0))
#define OF_THE_DEAD FIRST(IS_OF_THE_DEAD)
inline advance() { atomic { do :: done < C && cell[done + 1] == DONE -> done++ :: else -> break od } }
inline publish_reply() {
  atomic {
    assert(nput[me] - ntaken[me] < R);                /* there is room */
    assert(status[n] != WORKER_GONE);
    reply[me * R + nput[me] % R] = n; nput[me]++; answered[n] = true }
}
#if defined(IDEM) || defined(REDELIVER)
#define AFTER_A_DEATH RETURNED
#else
#define AFTER_A_DEATH DONE
#endif
inline body() {
  do
  :: atomic { OLDEST != 0 -> n = OLDEST; cell[n] = BY(me) };
     hold[me] = n;
     if
#ifdef GIVEBACK
     :: !returned ->
#ifdef RETURNFIRST
        atomic { cell[n] = RETURNED; returned = true };
        hold[me] = 0
#else
        hold[me] = 0;
        atomic { cell[n] = RETURNED; returned = true }
#endif
#endif
     :: true ->
        if
        :: atomic { cancelled[n] -> skip }
        :: atomic { else ->
#ifndef IDEM
             assert(!begun[n]);
#endif
             begun[n] = true };
#ifdef DONEFIRST
           cell[n] = DONE; advance();
#endif
           publish_reply()
        fi;
        atomic { assert(cell[n] == BY(me) || cell[n] == DONE); cell[n] = DONE };
        advance();
        hold[me] = 0
     fi;
     n = 0
#ifdef DIE
#ifndef DEADLEFT
  :: atomic { me != 0 && told0 && OF_THE_DEAD != 0 -> n = OF_THE_DEAD; cell[n] = AFTER_A_DEATH; n = 0 };
     advance()
#endif
  :: atomic { me != 0 && told0 && done < C && cell[done + 1] == DONE -> skip }; advance()
#endif
  :: over -> break
  od
}
proctype worker(byte me) { byte n; bool returned; body() }
proctype mortal(byte me) {
  byte n; bool returned;
  { body() } unless { atomic { dead0 -> n = 0; returned = false } }
}
init {
  atomic {
    run caller();
#ifdef DIE
    run mortal(0);
#else
    run worker(0);
#endif
    run worker(1)
  };
#ifdef DIE
  if :: dead0 = true; told0 = true :: skip fi
#endif
}
