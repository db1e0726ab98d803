/* SPDX-License-Identifier: Apache-2.0 */
/* A publisher that retains its last K messages dies at any moment, and its daemon keeps them. Its
 * sockets are closed before it is dead, and until then it may write; the daemon looks at its pidfd.
 * NR readers subscribe at any moment and hold what they take, for good or for a while. A successor
 * retains K messages of its own: with its K-th the first one's go.
 *
 * Claims: what a reader that came for retained messages holds, nobody writes to; it gets the last K
 * whole; the memory is given back only when nobody has it; who subscribes gets a link or is told;
 * once the successor has published K, whoever comes gets those, and the first one's are gone in the
 * end.
 *
 * mutants: -DHANGUP    the hang-up of its control socket counts as its death     must fail
 *          -DNOSETTLE  links that were ready before are not looked at again      must fail
 *          -DLINKADDED the daemon waits for a publisher to be told of the link   must fail
 *          -DEARLY     the successor's first message replaces what is retained    must fail with -DK=2
 *          -DNEVER     nobody tells the daemon of the K-th message                must fail
 *          -DFREE      what is replaced is given back while readers have it       must fail
 *          -DHEADLATE  the reader counts from a head it read before the death     must fail
 */
#ifndef NR
#define NR 2
#endif
#ifndef K
#define K 1
#endif
#define NS (K + 2)
#ifndef LAST
#define LAST (NS + 2)
#endif
#define OPEN 0
#define DYING 1      /* RETAINED, and not settled */
#define RETAINED 2
#define VANISHED 3

byte pub, head, gen[NS], payload[NS], top2; bool hungup, dead, pubdone;     /* the publisher */
bool told2, offered2;                                                       /* its successor */
byte ls[NR], ls2[NR];                  /* links: 0 no, 1 ready, 2 open, 3 failed, 4 left */
byte hist[NR], hold[NR]; bool mapped[NR], given_back, late[NR], known[NR];

/* Publishes; its memory protocol with readers is that of ring.pml: a block whose message is held is
 * not used. */
proctype publisher() {
  byte n = 1, i, s, used[NS]; bool held;
  do
  :: n > LAST -> break
  :: n > 1 -> break                                        /* dies */
  :: n > 1 && !hungup -> hungup = true                     /* its sockets are closed, and a thread of it still writes */
  :: n <= LAST ->
     s = NS; i = 0;
     do
     :: i == NS -> break
     :: i < NS && used[i] == 0 -> s = i; break
     :: i < NS && used[i] != 0 && (used[i] + K > n - 1) -> i++
     :: i < NS && used[i] != 0 && (used[i] + K <= n - 1) ->
        gen[i] = 0;
        held = false;
        d_step { s = 0; do :: s == NR -> break :: s < NR -> if :: known[s] && hold[s] == used[i] -> held = true :: else -> skip fi; s++ od; s = NS };
        if :: !held -> s = i; break :: else -> i++ fi
     od;
     if
     :: s < NS -> used[s] = n; payload[s] = 0; payload[s] = n; gen[s] = n;
        if :: head = n; n++ :: n > 1 -> break fi           /* or dies before it has announced it */
     :: else -> break                                      /* full: has enough of it */
     fi
  od;
  hungup = true;
  dead = true
}
proctype successor() {
  byte n = 1;
  pub == RETAINED || pub == VANISHED;
  offered2 = true;
  do
  :: n > K -> break
  :: else ->
     top2 = n;
#ifndef NEVER
#ifdef EARLY
     told2 = true;
#else
     if :: n == K -> told2 = true :: else -> skip fi;      /* PublisherRetains */
#endif
#endif
     n++
  od
}
#ifdef FREE
#define UNMAPPED true
#else
#if NR > 1
#define UNMAPPED (!mapped[0] && !mapped[1])
#else
#define UNMAPPED (!mapped[0])
#endif
#endif
inline deliver(r) {
  if
  :: atomic { ls[r] == 1 && pub == OPEN && !hungup -> known[r] = true; mapped[r] = true; ls[r] = 2 }
  :: ls[r] == 1 && pub == RETAINED ->
#ifdef LINKADDED
     known[r];                                             /* its link socket has nobody to read it */
#endif
     late[r] = true; mapped[r] = true; ls[r] = 2
  :: ls[r] == 1 && pub == VANISHED -> ls[r] = 3
  :: else -> skip
  fi
}
proctype daemon() {
end:
  do
  :: pub == OPEN && hungup -> pub = DYING
#ifdef HANGUP
  :: pub == DYING -> pub = RETAINED
#else
  :: pub == DYING && dead -> pub = RETAINED
#endif
#ifdef NOSETTLE
  :: ls[0] == 1 && pub == OPEN && !hungup -> deliver(0)     /* and not again when it has died */
#else
  :: ls[0] == 1 && (pub != DYING) && !(pub == OPEN && hungup) -> deliver(0)
#endif
#if NR > 1
  :: ls[1] == 1 && (pub != DYING) && !(pub == OPEN && hungup) -> deliver(1)
#endif
  /* dlxd_retained_succeed(): it goes from the topic at once, its memory with the last link */
  :: pub == RETAINED && told2 -> assert(top2 >= K); pub = VANISHED
  :: pub == VANISHED && !given_back && UNMAPPED -> given_back = true
  od
}
proctype reader(byte r) {
  byte h, n, i;
  if :: pub == VANISHED -> assert(offered2 && top2 >= K); goto out :: pub != VANISHED -> skip fi;
  atomic { if :: pub != VANISHED -> ls[r] = 1 :: else -> goto out fi }
#ifdef HEADLATE
  h = head;
#endif
  ls[r] >= 2;
  if :: ls[r] == 3 -> assert(top2 >= K); goto out :: else -> skip fi;
#ifndef HEADLATE
  h = head;
#endif
  d_step { i = 0; do :: i == NS -> break :: i < NS && gen[i] == h + 1 -> h++; break :: else -> i++ od; i = 0 }  /* find_newest() */
  n = (h >= K -> h - K : 0);
  do
  :: n == h -> break
  :: n < h ->
     n++; hold[r] = n; i = 0;
     do :: i == NS -> break :: i < NS && gen[i] == n -> break :: i < NS && gen[i] != n -> i++ od;
     if
     :: i < NS ->
        assert(payload[i] == n && !given_back);
        assert(payload[i] == n && !given_back)
     :: else -> assert(!late[r])                           /* who came for what is retained gets all of it */
     fi;
     hold[r] = 0
  od;
  mapped[r] = false; ls[r] = 4;
out: skip
}
/* In the end the first one's messages are replaced and their memory is back. */
proctype check() { (pub == VANISHED && given_back) }
init { byte r; atomic { run publisher(); run successor(); run daemon(); run check(); do :: r == NR -> break :: r < NR -> run reader(r); r++ od } }
