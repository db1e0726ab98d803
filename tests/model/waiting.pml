/* SPDX-License-Identifier: Apache-2.0 */
/* Links that wait in the daemon because the link socket has no room (here: for one), those that end
 * meanwhile, and the daemon's death at any moment. NL subscribers of one publisher join, take the
 * newest message, hold it for a while, perhaps longer than their link is there, or sleep until
 * there is another one. The publisher publishes LAST messages in NS blocks of memory and then makes
 * no call any more. Once the daemon has died it goes on in other memory.
 *
 * -DBELLS  they stay, and sleep; else they look all the time, and leave when they like
 *
 * Claims: nothing held is written to; nobody sleeps through a message; the publisher does not wait
 * for who has left.
 *
 * mutants: -DOPENFIRST  LinkOpen is sent before joins is raised                               must fail
 *          -DPASSES     who joins is sent while others wait                                   must fail
 *          -DNOHOLD     a waiting link that ends is withdrawn, whatever it holds              must fail
 *          -DLOWERSENT  joins is lowered for a link that was sent                             must fail
 *          -DNOTLOWERED joins is not lowered                                                  must fail
 *          -DFREES      the publisher frees what no link that it knows holds                  must fail
 *          -DREUSED     after the daemon's death it goes on in the same memory                must fail
 *          -DNORING     the daemon rings nobody when it sends on                              must fail with -DBELLS
 *          -DRINGFIRST  it rings before it sends                                              must fail with -DBELLS
 *          -DRINGONE    it rings only the one that it sends                                   must fail with -DBELLS
 */
#ifndef NL
#define NL 2
#endif
#ifndef NS
#define NS 2
#endif
#ifndef LAST
#define LAST 3
#endif

chan sock = [1] of { byte };                                       /* the link socket */
bool ddead, waits[NL], opened[NL], ended[NL], seen_end[NL]; byte joins; chan queue = [NL] of { byte };   /* daemon */
byte head, block_of[LAST + 1], gen[NS], payload[NS]; bool moved, asleep;   /* publisher */
byte hold[NL]; bool closed[NL], sleeping[NL], bell[NL];            /* subscribers */

/* A step of the daemon, if it lives. */
#define STEP(x) if :: atomic { !ddead -> x } :: ddead -> goto out fi

#ifndef BELLS
#define NORING
#endif
inline ring_waiters() {
  k = 0;
  do :: k == NL -> break :: k < NL -> if :: waits[k] -> bell[k] = true :: else -> skip fi; k++ od;
  k = 0
}
#ifdef PASSES
#define MAY_SEND len(sock) < 1
#else
#define MAY_SEND (len(queue) == 0 && len(sock) < 1)
#endif
#ifdef NOHOLD
#define HAS_LEFT(l) true
#else
#define HAS_LEFT(l) (closed[l] && hold[l] == 0)
#endif
#ifdef NOTLOWERED
#define LOWER skip
#else
#define LOWER joins--
#endif
proctype daemon() {
  byte next, l, k;
end:
  do
  :: ddead -> break
  :: !ddead && next < NL ->                                         /* dlxd_pending_join_send, step_done, send_open */
     STEP(if :: MAY_SEND -> sock!next :: else -> queue!next; waits[next] = true fi);
#ifdef OPENFIRST
     STEP(opened[next] = true); STEP(joins++);
#else
     STEP(joins++); STEP(opened[next] = true);
#endif
     next++
  :: !ddead && len(queue) > 0 && len(sock) < 1 ->                     /* flush */
#ifdef RINGFIRST
     STEP(ring_waiters());
#endif
     STEP(queue?l; sock!l; waits[l] = false);
#if !defined(NORING) && !defined(RINGFIRST)
     STEP(bell[l] = true);
#ifndef RINGONE
     STEP(ring_waiters());
#endif
#endif
     l = 0
  :: atomic { !ddead && ended[0] && !seen_end[0] -> l = 0; seen_end[0] = true }; goto look
  :: atomic { !ddead && NL > 1 && ended[1] && !seen_end[1] -> l = 1; seen_end[1] = true }; goto look
  :: atomic { !ddead && NL > 2 && ended[NL - 1] && !seen_end[NL - 1] -> l = NL - 1; seen_end[NL - 1] = true }; goto look
  /* Again, now and then. */
  :: atomic { !ddead && seen_end[0] && waits[0] && HAS_LEFT(0) -> l = 0 }; goto look
  :: atomic { !ddead && NL > 1 && seen_end[1] && waits[1] && HAS_LEFT(1) -> l = 1 }; goto look
  :: atomic { !ddead && NL > 2 && seen_end[NL - 1] && waits[NL - 1] && HAS_LEFT(NL - 1) -> l = NL - 1 }; goto look
  od;
  goto out;
look:
#ifdef LOWERSENT
  STEP(if :: HAS_LEFT(l) -> joins--; if :: waits[l] -> queue??eval(l); waits[l] = false :: else -> skip fi :: else -> skip fi);
#else
  STEP(if :: waits[l] && HAS_LEFT(l) -> queue??eval(l); waits[l] = false; LOWER :: else -> skip fi);
#endif
  l = 0; goto end;
out: skip
}
proctype death() { if :: ddead = true :: skip fi }

#ifdef FREES
#define MISSING false
#else
#define MISSING (picked < seen)
#endif
/* env_pick_up, and dlx__writer_read_membership around it */
inline membership() {
  atomic { again = (joins == seen && picked < seen); seen = joins };
  do :: d_step { len(sock) > 0 -> sock?l; known[l] = true; picked++; l = 0 } :: len(sock) == 0 -> break od;
  if :: again -> ring_known() :: else -> skip fi; again = false
}
inline ring_known() {
#ifdef BELLS
  d_step { i = 0; do :: i == NL -> break :: i < NL -> if :: known[i] && sleeping[i] -> bell[i] = true :: else -> skip fi; i++ od; i = 0 }
#else
  skip
#endif
}
inline reclaim() {
  membership();
  d_step { i = 0; do :: i == NS -> break :: i < NS -> if :: used[i] != 0 && used[i] < head -> gen[i] = 0 :: else -> skip fi; i++ od; i = 0 };
  membership();
  d_step { i = 0; s = NS;
  do
  :: i == NS -> break
  :: i < NS ->
     if
     :: used[i] != 0 && used[i] < head && !MISSING ->
        l = 0; held = false;
        do :: l == NL -> break :: l < NL -> if :: known[l] && hold[l] == used[i] -> held = true :: else -> skip fi; l++ od;
        if :: !held -> used[i] = 0 :: else -> skip fi; l = 0; held = false
     :: else -> skip
     fi;
     if :: used[i] == 0 -> s = i :: else -> skip fi; i++
  od; i = 0 }
}
#define LEFT(l) (known[l] && hold[l] != 0)
proctype publisher() {
  byte n = 1, i, l, s, seen, picked, used[NS]; bool known[NL], held, again;
  do
  :: n > LAST -> break
  :: else ->
     reclaim();
     if
     :: s < NS -> skip
     :: else ->
        /* Until somebody lets go, or is sent, or withdrawn; or the daemon has died, and all that it
         * sent was read. */
wait:   if
        :: len(sock) > 0 || joins != seen -> skip
        :: (!MISSING && !(LEFT(0)) && !(NL > 1 && LEFT(1)) && !(NL > 2 && LEFT(NL - 1))) -> skip
        :: ddead && len(sock) == 0 ->                                  /* resume */
#ifdef REUSED
           seen = 0; picked = 0; joins = 0
#else
           moved = true; break
#endif
        fi
     fi;
     if
     :: s < NS ->
        payload[s] = 0;
        d_step { used[s] = n; payload[s] = n; gen[s] = n; block_of[n] = s; head = n };
        membership(); ring_known();
        n++
     :: else -> skip
     fi; s = 0
  od;
  asleep = true                                                     /* whoever has its news now, has it */
}

proctype subscriber(byte l) {
  byte n, s, cur;
  if :: opened[l] :: ddead && !opened[l] -> closed[l] = true; goto out fi;
  do
  :: moved -> break
  :: cur == LAST -> break
#ifndef BELLS
  :: true -> break                                                  /* it leaves */
#endif
  :: !moved && cur < LAST ->
     if
     :: head == cur ->
#ifdef BELLS
        sleeping[l] = true;
        if
        :: head == cur -> if :: atomic { bell[l] -> bell[l] = false } :: moved :: ddead fi /* 20 ms */
        :: else -> skip
        fi;
        sleeping[l] = false;
#else
        if :: head != cur :: moved :: ddead fi;
#endif
        if :: ddead && head == cur -> break :: else -> skip fi
     :: else ->
        n = head; d_step { s = block_of[n]; hold[l] = n };
        if
        :: atomic { gen[s] != n -> hold[l] = 0 }
        :: atomic { gen[s] == n -> assert(payload[s] == n); cur = n };
           if
           :: atomic { assert(payload[s] == n); hold[l] = 0 }
#ifndef BELLS
           :: break                                                 /* it leaves, and holds it yet */
#endif
           fi
        fi; atomic { n = 0; s = 0 }
     fi
  od;
  atomic { n = 0; s = (hold[l] != 0 -> block_of[cur] : 0); closed[l] = true; ended[l] = true };
  if :: atomic { hold[l] != 0 -> assert(payload[s] == cur); hold[l] = 0 } :: hold[l] == 0 fi;
out: skip
}
init {
  byte i;
  atomic { run publisher(); run daemon(); run death(); do :: i == NL -> break :: i < NL -> run subscriber(i); i++ od }
}
