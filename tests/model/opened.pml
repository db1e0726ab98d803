/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher moved to another daemon while a declared group had undone messages, M of them, which
 * were carried into a new block with a new claims page. Workers 0 and 1 were there before: they do
 * what was carried by the old page, as long as one of them is left. Worker 2 comes by the new daemon
 * alone. The publisher opens what is left for all once no former worker may do any of it
 * (open_carried() in ring/writer.c), and stores the first message that was not passed. Workers 0 and
 * 1 may die at any step, and worker 0 may leave.
 *
 * What is claimed: each message is done; nobody claims what a live worker has; who does a message
 * again sees the mark; what a former worker's `done` has passed is not done again; no wait for ever.
 * What was done out of order, after one that was not, is done again, and marked.
 *
 * The other way, where workers repeat their claims in the new page, is in carry_claims.pml.
 *
 * mutants, which must fail:
 * -DATONCE      opened at once
 * -DLINKONLY    opened when a former worker has its new link
 * -DPASSEDFIRST looks at `done` of the former workers, then whether they are gone
 * -DDEADWAIT    the dead are waited for
 * -DNOMARK      who claims what was carried counts the attempts from one
 * -DNORETURN    a former worker does not look at what dead ones have
 * -DFROMONE     opened from the first message that was carried
 */
#ifndef M
#define M 2
#endif
#define NONE 0
#define BY(w) ((w) + 1)
#define RETURNED 8
#define DONE 9
#define NW 3

byte old[M + 1], new[M + 1], done[2], carried; /* claims pages; link pages; new block */
bool left[2], dead[2], has_new[2];
byte over;                                     /* the workers end */
byte ntimes[M + 1];                            /* what is checked: how often it was done */
#define GONE(w) (left[w] || dead[w])
#define PASSED (done[0] > done[1] -> done[0] : done[1])
#define LIVE_OWNER(c) ((c) == BY(0) && !dead[0] || (c) == BY(1) && !dead[1])

proctype publisher() {
  byte passed;
#ifdef PASSEDFIRST
  passed = PASSED;
#endif
#ifdef ATONCE
  skip;
#else
#ifdef LINKONLY
  (has_new[0] || has_new[1] || dead[0] && dead[1]);
#else
#ifdef DEADWAIT
  (left[0] && left[1] || PASSED == M);
#else
  if :: GONE(0) -> GONE(1) :: PASSED == M fi;
#endif
#endif
#endif
#ifndef PASSEDFIRST
  passed = PASSED;
#endif
#ifdef FROMONE
  passed = 0;
#endif
  carried = passed + 1;
  /* All that is open is done. */
#if M == 2
  (carried > 1 || new[1] == DONE); (carried > 2 || new[2] == DONE);
#else
  (carried > 1 || new[1] == DONE); (carried > 2 || new[2] == DONE); (carried > 3 || new[3] == DONE);
#endif
  atomic {
    passed = 1;
    do :: passed > M -> break :: passed <= M -> assert(ntimes[passed] > 0); passed++ od;
    over = true
  }
}
#define FREE_OLD(n) (old[n] == NONE || old[n] == RETURNED)
#define FREE_NEW(n) (carried != 0 && n >= carried && (new[n] == NONE || new[n] == RETURNED || \
                     new[n] == BY(0) && dead[0] && me != 0 || new[n] == BY(1) && dead[1] && me != 1))
#ifdef NOMARK
#define ATTEMPT_NEW false
#else
#define ATTEMPT_NEW true
#endif
#define FORMER (me < 2 && !left[me])
#define CLAIM_OLD(n) \
  :: atomic { has == 0 && FORMER && FREE_OLD(n) -> \
       has = n; marked = (old[n] == RETURNED); by_new = false; old[n] = BY(me) }
#define CLAIM_NEW(n) \
  :: atomic { has == 0 && FREE_NEW(n) && (me == 2 || has_new[me]) -> \
       assert(!LIVE_OWNER(old[n])); assert(!LIVE_OWNER(new[n])); assert(n > PASSED); \
       has = n; by_new = true; marked = ATTEMPT_NEW; new[n] = BY(me) }
#define LOOK(n) \
  :: atomic { FORMER && old[n] == BY(1 - me) && dead[1 - me] -> old[n] = RETURNED }
#define OVER_OLD (old[done[me] + 1] == DONE)
inline body() {
  do
  CLAIM_OLD(1)
  CLAIM_OLD(2)
  CLAIM_NEW(1)
  CLAIM_NEW(2)
#if M > 2
  CLAIM_OLD(3)
  CLAIM_NEW(3)
#endif
  :: atomic { has != 0 -> assert(ntimes[has] == 0 || marked); ntimes[has]++ };
     atomic { if :: by_new -> new[has] = DONE :: else -> assert(old[has] == BY(me)); old[has] = DONE fi;
              has = 0; by_new = false; marked = false }
  :: atomic { has != 0 && !by_new && !returned && me == 0 -> /* it gives back */
       old[has] = RETURNED; has = 0; marked = false; returned = true }
  :: atomic { FORMER && done[me] < M && OVER_OLD -> done[me] = done[me] + 1 }
#ifndef NORETURN
  LOOK(1)
  LOOK(2)
#if M > 2
  LOOK(3)
#endif
#endif
  :: atomic { me < 2 && !has_new[me] -> has_new[me] = true }
  :: atomic { FORMER && has == 0 && (me == 0 || done[me] == M) -> left[me] = true }
  :: atomic { over && has == 0 -> break }
  od
}
proctype former(byte me) {
  byte has; bool by_new, marked, returned;
  { body() } unless { atomic { dead[me] -> has = 0; by_new = false; marked = false; returned = false } }
}
proctype newcomer(byte me) { byte has; bool by_new, marked, returned; body() }
init {
  atomic { run publisher(); run former(0); run former(1); run newcomer(2) };
  if :: dead[0] = true :: skip fi;
  if :: dead[1] = true :: skip fi
}
