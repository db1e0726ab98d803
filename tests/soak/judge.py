# SPDX-License-Identifier: Apache-2.0
"""Adds up the ledgers of actors: sent = received + reported.

A message that a subscription should have got and did not, and that no process reported, is a fault.
"""

from ledger import (
    CALLER,
    CLOSED,
    DRAINED,
    ERRORS,
    GETTER,
    PUBLISHER,
    RELIABLE,
    SERVER,
    WORKER,
    contradictions,
    lost_after_first,
)
from work import ANNOUNCED_NS


class Totals:
    """Sums over all rounds, and the faults."""

    def __init__(self):
        self.publishers = self.subscriptions = self.getters = self.drained = 0
        self.published = self.published_bytes = self.taken = self.taken_bytes = self.got = 0
        self.lost = self.skipped = self.unreported = self.reliable_lost = 0
        self.links = 0
        self.workers = self.claimed = self.done = self.redelivered = self.dead = 0
        self.work_lost = self.done_twice_unmarked = self.work_unknown = 0
        self.callers = self.servers = self.calls = self.replies = self.calls_failed = 0
        self.calls_timed_out = self.workers_gone = self.calls_cancelled = self.served_again = 0
        self.errors = [0] * ERRORS
        self.faults = []

    def as_dict(self):
        return {k: v for k, v in vars(self).items() if k not in ("errors", "faults")}


def judge(objects, restarts, totals):
    """`objects` of one round; `restarts`: when the daemon was away, [(from_ns, to_ns)]."""
    publishers = {o.key: o for o in objects if o.kind == PUBLISHER}
    for o in objects:
        totals.errors = [a + b for a, b in zip(totals.errors, o.errors)]
        if o.kind == PUBLISHER:
            totals.publishers += 1
            totals.published += o.done
            totals.published_bytes += o.bytes
        elif o.kind == GETTER:
            totals.getters += 1
            totals.got += o.taken
        elif o.kind == WORKER:
            totals.workers += 1
        elif o.kind == CALLER:
            totals.callers += 1
        elif o.kind == SERVER:
            totals.servers += 1
        else:
            judge_subscription(o, publishers, restarts, totals)


def has_met_all_daemons(p, restarts):
    """Was it there to copy for the next daemon what one that ended had not sent? Not if it was
    killed, or closed soon after."""
    return (
        p is not None
        and p.state >= CLOSED
        and not any(begin < p.ended_ns < end + ANNOUNCED_NS for begin, end in restarts)
    )


def judge_subscription(s, publishers, restarts, totals):
    taken, gaps = sum(k.taken for k in s.keys), sum(k.gaps for k in s.keys)
    totals.subscriptions += 1
    totals.links += len(s.keys)
    totals.taken += taken
    totals.taken_bytes += s.bytes

    def fault(unreported, text):
        totals.unreported += unreported
        totals.faults.append(f"{s}: {text}")

    for words in contradictions(s, publishers):
        fault(0, words)
    for k in s.keys:
        p = publishers.get(k.key)
        if p and k.prev_ns > s.ready_ns > 0 and not was_unannounced(k, p, restarts):
            fault(
                k.start,
                f"began with message {k.start + 1} of key {k.key}, but the one before was "
                "published "
                f"{(k.prev_ns - s.ready_ns) / 1e6:.3f} ms after the subscription was made, and "
                "the first was taken "
                f"after {(k.first_ns - s.ready_ns) / 1e6:.3f} ms; the publisher was announced at "
                f"{(p.ready_ns - s.ready_ns) / 1e6:.1f} ms, its state is {p.state}; the daemon "
                "was away at "
                f"{[round((x - s.ready_ns) / 1e6, 1) for r in restarts for x in r]} ms",
            )
    if s.state < CLOSED:
        return  # it was killed
    totals.lost += s.lost
    totals.skipped += s.skipped
    unattributed = s.lost + s.skipped - gaps
    if s.taken != taken:
        fault(abs(s.taken - taken), f"took {taken} messages and counts {s.taken}")
    if unattributed < 0:
        fault(
            -unattributed,
            f"{gaps} messages are missing in between, {s.lost} + {s.skipped} are reported",
        )
    # A publisher cannot wait for a subscription before it is attached: its first messages may be
    # lost, and are counted.
    lost = lost_after_first(s)
    if s.flags & RELIABLE and lost > 0:
        if any(begin < s.ended_ns and end > s.begun_ns for begin, end in restarts):
            totals.reliable_lost += lost  # see docs/PROTOCOL.md, "Another daemon"
            for k in s.keys:
                if k.gaps > k.first_gap and has_met_all_daemons(publishers.get(k.key), restarts):
                    fault(
                        0,
                        f"is reliable, and {k.gaps - k.first_gap} messages of key {k.key} are "
                        "lost after the first, "
                        "whose publisher has met all daemons",
                    )
        else:
            fault(0, f"is reliable, and {lost} messages are lost after the first")
    if s.state != DRAINED:
        return
    totals.drained += 1
    missing = {k.key: publishers[k.key].done - k.last for k in s.keys if k.key in publishers}
    told = {k.key for k in s.keys if was_told_of_the_end(k, publishers.get(k.key), s, restarts)}
    missing = {key: n for key, n in missing.items() if n > 0 and key not in told}
    if sum(missing.values()) > max(0, unattributed):
        what = ", ".join(
            f"{n} of {publishers[key].done} of key {key} (state {publishers[key].state})"
            for key, n in missing.items()
        )
        fault(
            sum(missing.values()) - max(0, unattributed),
            f"drained, and the last ones are missing: {what}; {max(0, unattributed)} reported",
        )


def was_told_of_the_end(k, p, s, restarts):
    """Was the publisher killed after it may have gone on with another daemon, and did the
    subscription get an event that says so? No process can count what the publisher published there
    before the subscription came (docs/PROTOCOL.md, "Another daemon").
    """
    return (
        p is not None
        and p.state < CLOSED
        and k.lost_told > 0
        and any(begin < s.ended_ns and end > p.ready_ns for begin, end in restarts)
    )


def was_unannounced(k, p, restarts):
    """Was the publisher, before message `start`, one that the new daemon did not know yet? A
    publisher looks once a second.
    """
    return any(
        p.ready_ns < end < k.first_ns and k.prev_ns < end + ANNOUNCED_NS for _, end in restarts
    )
