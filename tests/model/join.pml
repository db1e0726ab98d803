/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's packets at a join, and its death between any two of them. NP publishers of one topic, each with a link to
 * one reliable subscription: LinkAdded is queued on the publisher's link socket, then its `joins` is raised, then LinkOpen
 * is sent. Without a daemon streams go on; a link that it did not open is closed by the subscription.
 *
 * Claims: of what is published after the subscription read head, nothing is missing; nothing held is written to; nobody
 * waits for ever.
 *
 * -DMISS           a packet may be lost at the first three tries to pick it up (no descriptors): the link counts as one that holds
 *                  everything, and a later look finds it (in the code: never, and the publisher frees nothing)
 * -DNOEPOCH1       joins is read after retiring only: passes, as `head =` is followed by a look
 * -DNOEPOCH2       joins is read before retiring only: passes, likewise
 *
 * mutants: -DJOINFIRST  joins is raised before the packet is queued              must fail
 *          -DOPENFIRST  LinkOpen is sent before joins is raised                  must fail
 *          -DADDLATE    LinkOpen is sent before LinkAdded is queued, joins last  must fail
 *          -DNOPICKUP   joins is not read after `head =`                         must fail
 *          -DUNCOUNTED  a missing packet is no link                              must fail with -DMISS
 *          -DNOCLOSED   a link that was not opened is not closed                 must fail
 */
#ifndef NP
#define NP 1
#endif
#ifndef NS
#define NS 2
#endif
#ifndef LAST
#define LAST 4
#endif
#define H 1
#define CLOSED 255     /* unset is 0 */

bool ddead, added[NP], opened[NP]; byte joins[NP];                           /* daemon */
byte head[NP], gen[NP * NS], ring[NP * NS], payload[NP * NS]; bool blocked[NP];   /* publishers */
byte cursor[NP], hold[NP]; bool sleeping[NP], bellP[NP], bellS[NP];   /* subscription: a page a link */

proctype daemon(byte p) {
end:
  if :: atomic { !ddead ->
#ifdef JOINFIRST
          joins[p] = 1 }
#else
#ifdef ADDLATE
          opened[p] = true }
#else
          added[p] = true }
#endif
#endif
     :: ddead -> goto out
  fi;
  if :: atomic { !ddead ->
#ifdef JOINFIRST
          added[p] = true }
#else
#ifdef OPENFIRST
          opened[p] = true }
#else
#ifdef ADDLATE
          added[p] = true }
#else
          joins[p] = 1 }
#endif
#endif
#endif
     :: ddead -> goto out
  fi;
  if :: atomic { !ddead ->
#if defined(OPENFIRST) || defined(ADDLATE)
          joins[p] = 1 }
#else
          opened[p] = true }
#endif
     :: ddead
  fi;
out: skip
}
proctype death() { ddead = true }

#ifdef MISS
#define PICK if :: added[p] -> known = true :: added[p] && tried < 3 -> tried++ :: else -> skip fi
#else
#define PICK if :: added[p] -> known = true :: else -> skip fi
#endif
#ifdef UNCOUNTED
#define MISSING false
#else
#define MISSING (seen > 0 && !known)
#endif
/* dlx__pub_read_membership() */
inline membership() {
  if
  :: joins[p] != seen -> d_step { seen = joins[p] }; PICK
  :: joins[p] == seen && seen > 0 && !known -> PICK; if :: known && sleeping[p] -> bellS[p] = true :: else -> skip fi
  :: else -> skip
  fi
}
#define SLOTS(i) (p * NS + (i))
inline reclaim() {
#ifndef NOEPOCH1
  membership();
#endif
  to = (MISSING -> 0 : CLOSED);
  if :: known -> if :: cursor[p] < to -> to = cursor[p] :: else -> skip fi :: else -> skip fi;
  i = 0;
  do
  :: i == NS -> break
  :: i < NS -> if :: slot[i] != 0 && gen[SLOTS(i)] != 0 && slot[i] <= to && slot[i] + H <= head[p] -> gen[SLOTS(i)] = 0 :: else -> skip fi; i++
  od;
#ifndef NOEPOCH2
  membership();
#endif
  i = 0;
  do
  :: i == NS -> break
  :: i < NS -> if :: slot[i] != 0 && gen[SLOTS(i)] == 0 && !MISSING && (!known || hold[p] != slot[i]) -> slot[i] = 0 :: else -> skip fi; i++
  od;
  i = 0;
  d_step { s = NS; do :: i == NS -> break :: i < NS -> if :: slot[i] == 0 -> s = i :: else -> skip fi; i++ od; i = 0; to = 0 }
}
proctype publisher(byte p) {
  byte n = 1, i, s, to, seen, slot[NS]; bool known, noted, left;
#ifdef MISS
  byte tried;
#endif
  do
  :: n > LAST -> break
  :: else ->
     reclaim();
     if
     :: s < NS -> skip
     :: else ->
        do
        :: blocked[p] = true;
           reclaim();
           if :: s < NS -> break
              /* the bell; the link socket; once that has hung up a look every 20 ms, which sees what has changed */
              :: else -> atomic { bellP[p] || (added[p] && !known) || (ddead && !noted) || (ddead && known && cursor[p] == CLOSED && !left) -> bellP[p] = false; noted = ddead; left = (cursor[p] == CLOSED) }; PICK
           fi
        od; blocked[p] = false
     fi;
     slot[s] = n; payload[SLOTS(s)] = 0; payload[SLOTS(s)] = n;
     gen[SLOTS(s)] = n; ring[p * NS + n % NS] = s; head[p] = n;
#ifndef NOPICKUP
     membership();
#endif
     if :: known && sleeping[p] -> bellS[p] = true :: else -> skip fi;
     n++
  od
}

inline ringP() { if :: blocked[p] -> bellP[p] = true :: else -> skip fi }
/* A subscription takes from its links in turn and sleeps on all of their bells: what it does on one waits for no other. */
proctype link(byte p) {
  byte h, cur, from, s, n;
  if
  :: opened[p] -> skip
  :: ddead && !opened[p] ->
#ifndef NOCLOSED
     cursor[p] = CLOSED;
#endif
     goto out
  fi;
  h = head[p]; cur = (h >= H -> h - H : 0); from = h;
  cursor[p] = cur; ringP();
  do
  :: cur == LAST -> break
  :: else ->
     h = head[p];
     if
     :: h == cur ->
        sleeping[p] = true;
        if
        :: head[p] == cur ->
#ifdef MISS
endmiss:                /* whom the publisher does not know it rings when it looks the next time, which may be never */
#endif
           atomic { bellS[p] -> bellS[p] = false }
        :: else -> skip
        fi;
        sleeping[p] = false
     :: else ->
        n = cur + 1; s = ring[p * NS + n % NS];
        hold[p] = n;
        if
        :: gen[p * NS + s] != n -> assert(n <= from); hold[p] = 0; ringP(); cur = n; cursor[p] = n; ringP()
        :: else ->
           assert(payload[p * NS + s] == n);
           cur = n; cursor[p] = n; ringP();
           assert(payload[p * NS + s] == n);
           hold[p] = 0; ringP()
        fi
     fi; h = 0; s = 0; n = 0
  od;
out: skip
}
init {
  byte i;
  atomic { do :: i == NP -> break :: i < NP -> run publisher(i); run link(i); run daemon(i); i++ od; run death() }
}
