/* SPDX-License-Identifier: Apache-2.0 */
/* How readers ring a publisher that waits for room: `blocked` is a number, and a reader rings once
 * for each. NR readers have NT threads each, which share what their reader has rung for; each thread makes
 * room LAST times. The publisher wants all of it, waits in a call (wait_until()), or, with FD, returns
 * and is called again when its descriptor says so (dlx_publisher_fd()). A publisher that sleeps for
 * ever is an invalid end state.
 *
 * mutants, which must fail:
 * -DSAMENUMBER  a further look stores the same number
 * -DLOOKFIRST   looks, then stores the number
 * -DDRAINLATE   stores the number, then forgets what was rung                          (FD)
 * -DLOADFIRST   a reader looks at `blocked`, then makes room
 *
 * needless: -DNEWAFTER  stores one more number after it has looked: what is rung stays rung
 */
#ifndef NR
#define NR 2
#endif
#ifndef NT
#define NT 1
#endif
#ifndef LAST
#define LAST 2
#endif
#define ALL (NR * NT * LAST)
#ifdef FD
#define DRAINS bell = false
#else
#define DRAINS skip
#endif
#define ALWAYS 1

byte made, blocked, rung[NR]; bool bell;

inline ask() {
#ifdef SAMENUMBER
  if :: number == ALWAYS -> number++ :: else -> skip fi;
#else
  number++;
#endif
  blocked = number
}

active proctype publisher() {
  byte number = ALWAYS, seen, was;
  do
  :: seen == ALL -> break
  :: else ->
#ifdef LOOKFIRST
     DRAINS; was = seen; seen = made; ask();
#elif defined DRAINLATE
     ask(); DRAINS; was = seen; seen = made;
#else
     DRAINS; ask(); was = seen; seen = made;
#endif
     if
     :: seen > was -> blocked = 0
     :: else ->
#ifdef NEWAFTER
        ask();
#endif
#ifdef FD
        bell /* the program polls, and calls again */
#else
        atomic { bell -> bell = false }
#endif
     fi
  od
}

proctype thread(byte r) {
  byte k, b;
  do
  :: k == LAST -> break
  :: else ->
#ifdef LOADFIRST
     b = blocked; made++;
#else
     made++; b = blocked;
#endif
     if
     :: b == 0 || (b != ALWAYS && rung[r] == b) -> skip
     :: else -> rung[r] = b; bell = true
     fi;
     k++
  od
}

init {
  byte i;
  atomic { do :: i == NR * NT -> break :: else -> run thread(i / NT); i++ od }
}
