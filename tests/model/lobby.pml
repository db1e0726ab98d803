/* SPDX-License-Identifier: Apache-2.0 */
/* The lobby of a publisher whose link socket is full: two trays, NL links that join one after the other, leave at any moment, or stay; a
 * daemon that takes out who has left when CAP wait, and dies between any two steps; a publisher that picks up at any moment.
 *
 * A packet is one bit of a tray; the lowest is its head. The publisher looks at the head and then takes the head out: two steps, between
 * which the daemon may change trays, if nothing keeps it from that.
 *
 * Claims: a publisher that has read everything knows every link that is there, of those whose joins it had read; none twice; nobody
 * waits for ever.
 *
 * mutants: -DEMPTYFIRST  the tray is emptied before the others are in the other one         must fail
 *          -DNOCLEARING  the publisher does not look at `clearing`                          must fail
 *          -DNOPICKING   the daemon does not look at `picking`                              must fail
 *          -DLOADFIRST   the publisher looks at `clearing`, then stores `picking`           must fail
 *          -DNOVOUCH     a daemon that died while it cleared is waited for                  must fail
 *          -DONETRAY     only the tray that was in use first is read                        must fail
 *          -DCOUNT       who has received as many packets as have joined knows all          must fail
 *          -DTWICE       a link that is known is added again                                must fail
 *          -DJOINFIRST   joins is raised before the packet is sent                          must fail
 */
#ifndef NL
#define NL 4
#endif
#ifndef CAP
#define CAP 2
#endif
#ifndef PICKS
#define PICKS 3
#endif

bool dead, clearing, picking, ready;
byte tray[2], joins, left, opened;     /* masks but joins */
#define BIT(i) (1 << (i))
#define STEP(what) if :: atomic { !dead -> what } :: dead -> goto out fi

proctype daemon() {
  byte l, i, n, used, waiting, stay;
  do
  :: l == NL -> break
  :: else ->
     if
     :: n < CAP -> skip
     :: else ->
        /* who has left by now: later ones stay */
        STEP(stay = waiting & ~left);
        if
        :: stay == waiting -> goto next    /* refused */
        :: else -> skip
        fi;
        STEP(clearing = true);
#ifndef NOPICKING
        if
        :: picking -> STEP(clearing = false); goto next
        :: else -> skip
        fi;
#endif
#ifdef EMPTYFIRST
        STEP(tray[used] = 0);
#endif
        i = 0;
        do
        :: i == NL -> break
        :: i < NL ->
           if :: stay & BIT(i) -> STEP(tray[1 - used] = tray[1 - used] | BIT(i)) :: else -> skip fi;
           i++
        od;
#ifndef EMPTYFIRST
        STEP(tray[used] = 0);
#endif
        used = 1 - used;
        STEP(clearing = false);
        waiting = stay;
        n = 0; i = 0;
        do :: i == NL -> break :: i < NL -> if :: stay & BIT(i) -> n++ :: else -> skip fi; i++ od; i = 0
     fi;
#ifdef JOINFIRST
     STEP(joins = l + 1);
#endif
     STEP(tray[used] = tray[used] | BIT(l)); waiting = waiting | BIT(l); n++;
#ifndef JOINFIRST
     STEP(joins = l + 1);
#endif
     STEP(opened = opened | BIT(l));
     l++; stay = 0; goto again;
next: stay = 0; break;
again: skip
  od;
out: ready = true
}
proctype death() { dead = true }
/* A link that is open may be left, and then is needed no more. */
proctype guest(byte l) {
end:
  opened & BIT(l);
  if :: left = left | BIT(l) :: skip fi
}

inline read_tray(t) {
  do
  :: tray[t] == 0 -> break
  :: else ->
     d_step { x = 0; do :: tray[t] & BIT(x) -> break :: else -> x++ :: x == NL -> break od };
     if
     :: x < NL ->
#ifdef TWICE
        assert(!(known & BIT(x)));
#endif
        known = known | BIT(x);
        /* whatever is the head now */
        d_step {
          x = 0; do :: x == NL -> break :: x < NL && (tray[t] & BIT(x)) -> break :: else -> x++ od;
          if :: x < NL -> tray[t] = tray[t] & ~BIT(x) :: else -> skip fi; n++; x = 0
        }
     :: else -> x = 0
     fi
  od
}
inline look_at_clearing() {
  go = true;
#ifndef NOCLEARING
#ifdef NOVOUCH
  go = !clearing;
#else
  go = (!clearing || dead);
#endif
#endif
}
proctype publisher() {
  byte known, x, n, seen, k; bool go, last;
  do
  :: k > PICKS -> break
  :: else ->
     if
     :: k == PICKS -> ready; last = true    /* once more, when nobody joins any more */
     :: else -> skip
     fi;
     seen = joins;
#ifdef LOADFIRST
     look_at_clearing(); picking = true;
#else
     picking = true; look_at_clearing();
#endif
     if
     :: !go ->
        picking = false;
        /* it looks again: nothing is to be left for which it does so for ever */
#ifdef NOVOUCH
        !clearing
#else
        (!clearing || dead)
#endif
     :: else ->
        read_tray(0);
#ifndef ONETRAY
        read_tray(1);
#endif
        /* all is known: of those that are there, and whose joins had been read */
#ifdef COUNT
        if :: n >= seen -> skip :: else -> goto incomplete fi;
#endif
        assert(((BIT(seen) - 1) & opened & ~left & ~known) == 0);
#ifdef COUNT
        goto complete;
incomplete: assert(!last);
complete: skip;
#endif
        picking = false; k++
     fi
  od
}
init {
  byte i;
  atomic { run daemon(); run death(); run publisher(); do :: i == NL -> break :: i < NL -> run guest(i); i++ od }
}
