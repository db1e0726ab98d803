/* SPDX-License-Identifier: Apache-2.0 */
/* A subscription that was there first, and whose process sleeps outside the library. It may have a
 * spare link, whose page is sealed; the daemon gives it to a publisher before it answers
 * PublisherReady. Without one the link is offered, and is there when the subscriber wakes up; a
 * publisher that blocks is answered only then. The publisher publishes up to LAST messages and
 * leaves, or is killed, at any moment; the ring keeps DEPTH.
 *
 * Claims: every message arrives or is counted as lost; a publisher that blocks loses nothing;
 * nobody waits for ever.
 *
 * -DSPARE          there is a spare link
 * -DBLOCK          the publisher blocks and the subscription is reliable
 *
 * mutants: -DOKFIRST    PublisherReady is answered before LinkAdded is queued   must fail with -DSPARE -DBLOCK
 *          -DNOWAIT     nobody is waited for without a spare                    must fail with -DBLOCK
 *          -DUNCOUNTED  LinkFailed does not say what was missed                 must fail
 *          -DNODRAIN    a link that was not opened fails with its publisher     must fail with -DSPARE -DBLOCK
 */
#ifndef LAST
#define LAST 4
#endif
#define DEPTH 2

bool ready, ok, added, linked, opened, failed, gone, awake; /* linked: the page can be given */
byte head, oldest, cursor, got, lost, missed;

proctype publisher() {
  ready = true;
  ok;
  do
  :: head < LAST ->
     if
#ifdef BLOCK
     :: atomic { added && head - cursor < DEPTH -> head++; oldest = (head > DEPTH -> head - DEPTH : 0) }
     :: atomic { !added -> head++; oldest = (head > DEPTH -> head - DEPTH : 0) }
#else
     :: atomic { head++; oldest = (head > DEPTH -> head - DEPTH : 0) }
#endif
     :: gone = true; goto out /* killed while it waits */
     fi
  :: gone = true; goto out
  od;
out: skip
}

proctype daemon() {
  ready;
#ifdef OKFIRST
  ok = true;
#endif
  if
  :: linked -> added = true
  :: else ->
#if defined(BLOCK) && !defined(NOWAIT)
     linked; added = true
#else
     ok = true;
     if
     :: linked -> atomic { if :: !gone -> added = true :: else -> skip fi }
     :: gone
     fi
#endif
  fi;
  ok = true;
#ifdef NODRAIN
  if :: awake && added -> opened = true :: gone fi;
#else
  if :: added -> opened = true :: !added -> gone fi;
#endif
  gone;
  if
  :: !opened -> atomic {
#ifndef UNCOUNTED
       missed = head;
#endif
       failed = true }
  :: else -> skip
  fi
}

proctype subscriber() {
  awake = true; /* whenever that is */
  linked = true;
  do
  :: opened && cursor < head ->
     atomic {
       if
       :: oldest > cursor -> lost = lost + oldest - cursor; cursor = oldest
       :: else -> cursor++; got++
       fi }
  :: opened && gone && cursor == head -> break
  :: failed -> lost = lost + missed; break
  od;
  assert(got + lost == head);
#if defined(BLOCK) && !defined(UNCOUNTED)
  assert(lost == 0)
#endif
}

init {
  atomic {
#ifdef SPARE
    linked = true;
#endif
    run publisher(); run daemon(); run subscriber()
  }
}
