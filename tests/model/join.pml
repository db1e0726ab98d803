/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's packets at a join, and its death between any two of them. NP publishers of one
 * topic, each with a link to one reliable subscription: LinkAdded is queued on the publisher's link
 * socket, then its `joins` is raised, then LinkOpen is sent. Without a daemon streams go on; a link
 * that it did not open is closed by the subscription.
 *
 * Takes and reclaim are those of ring.pml, with NS blocks of memory and entries enough.
 *
 * Claims: of what is published after the subscription looked for the newest message, nothing is
 * missing; nothing held is written to; nobody waits for ever.
 *
 * -DMISS           a packet may be lost at the first three tries to pick it up (no descriptors): the link counts as one that holds
 *                  everything, and a later look finds it (in the code: never, and the publisher frees nothing)
 * -DNOEPOCH1       joins is read after retiring only: passes, as `gen = n` is followed by a look
 * -DNOEPOCH2       joins is read before retiring only: passes, likewise
 *
 * mutants: -DJOINFIRST  joins is raised before the packet is queued              must fail
 *          -DOPENFIRST  LinkOpen is sent before joins is raised                  must fail
 *          -DADDLATE    LinkOpen is sent before LinkAdded is queued, joins last  must fail
 *          -DNOPICKUP   joins is not read after `gen = n`                        must fail
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
#define GONE 128
#define NUM(g) ((g) & 127)
#define E(n) (p * (LAST + 2) + (n))     /* the entry of message n */

bool ddead, added[NP], opened[NP]; byte joins[NP];                           /* daemon */
byte head[NP], gen[NP * (LAST + 2)], word[NP * (LAST + 2)], payload[NP * NS]; bool blocked[NP];   /* publishers */
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
/* dlx__writer_read_membership() */
inline membership() {
  if
  :: joins[p] != seen -> d_step { seen = joins[p] }; PICK
  :: joins[p] == seen && seen > 0 && !known -> PICK; if :: known && sleeping[p] -> bellS[p] = true :: else -> skip fi
  :: else -> skip
  fi
}
#define BLOCK(i) (p * NS + (i))
/* dlx__writer_reclaim(); used[i] is the number of the message in block i, or 0 */
inline reclaim() {
#ifndef NOEPOCH1
  membership();
#endif
  to = (MISSING -> 0 : CLOSED);
  if :: known -> if :: cursor[p] < to -> to = cursor[p] :: else -> skip fi :: else -> skip fi;
  i = 0;
  do
  :: i == NS -> break
  :: i < NS -> if :: used[i] != 0 && !(gen[E(used[i])] & GONE) && used[i] <= to && used[i] + H < n -> gen[E(used[i])] = used[i] + GONE :: else -> skip fi; i++
  od;
#ifndef NOEPOCH2
  membership();
#endif
  i = 0;
  do
  :: i == NS -> break
  :: i < NS -> if :: used[i] != 0 && (gen[E(used[i])] & GONE) && !MISSING && (!known || hold[p] != used[i]) -> used[i] = 0 :: else -> skip fi; i++
  od;
  i = 0;
  d_step { s = NS; do :: i == NS -> break :: i < NS -> if :: used[i] == 0 -> s = i :: else -> skip fi; i++ od; i = 0; to = 0 }
}
proctype publisher(byte p) {
  byte n = 1, i, s, to, seen, used[NS]; bool known, noted, left;
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
              /* the bell; the link socket; once that has hung up a look every 20 ms, which sees
               * what has changed */
              :: else -> atomic { bellP[p] || (added[p] && !known) || (ddead && !noted) || (ddead && known && cursor[p] == CLOSED && !left) -> bellP[p] = false; noted = ddead; left = (cursor[p] == CLOSED) }; PICK
           fi
        od; blocked[p] = false
     fi;
     d_step { used[s] = n; payload[BLOCK(s)] = n; word[E(n)] = s };
     gen[E(n)] = n; head[p] = n;
#ifndef NOPICKUP
     membership();
#endif
     if :: known && sleeping[p] -> bellS[p] = true :: else -> skip fi;
     n++
  od
}

inline ringP() { if :: blocked[p] -> bellP[p] = true :: else -> skip fi }
/* A subscription takes from its links in turn and sleeps on all of their bells: what it does on one
 * waits for no other. */
proctype link(byte p) {
  byte g, cur, from, s, n;
  if
  :: opened[p] -> skip
  :: ddead && !opened[p] ->
#ifndef NOCLOSED
     cursor[p] = CLOSED;
#endif
     goto out
  fi;
  from = head[p];                                /* find_newest() */
  do :: NUM(gen[E(from + 1)]) == from + 1 -> from++ :: else -> break od;
  cur = (from >= H -> from - H : 0);
  cursor[p] = cur; ringP();
  do
  :: cur == LAST -> break
  :: else ->
     atomic { n = cur + 1; g = gen[E(n)] };
     if
     :: NUM(g) < n ->
        sleeping[p] = true;
        if
        :: NUM(gen[E(n)]) < n ->
#ifdef MISS
endmiss:                /* whom the publisher does not know it rings when it looks the next time, which may be never */
#endif
           atomic { bellS[p] -> bellS[p] = false }
        :: else -> skip
        fi;
        sleeping[p] = false
     :: g == n ->
        s = word[E(n)]; hold[p] = n;
        if :: n <= from -> g = gen[E(n)] :: else -> skip fi;
        cur = n; cursor[p] = n; ringP();
        if
        :: g == n ->
           assert(payload[p * NS + s] == n);
           assert(payload[p * NS + s] == n)
        :: else -> skip
        fi;
        hold[p] = 0; ringP()
     :: else -> assert(n <= from); cur = n; cursor[p] = n; ringP()
     fi; atomic { g = 0; s = 0; n = 0 }
  od;
out: skip
}
init {
  byte i;
  atomic { do :: i == NP -> break :: i < NP -> run publisher(i); run link(i); run daemon(i); i++ od; run death() }
}
