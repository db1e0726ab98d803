# SPDX-License-Identifier: Apache-2.0
"""Adds up the ledgers of actors: sent = received + reported.

A message that a subscription should have got and did not, and that no process reported, is a fault.
"""

from ledger import (
    CLOSED,
    DECLARES,
    DID,
    DRAINED,
    ERRORS,
    GETTER,
    PUBLISHER,
    RELIABLE,
    SAYS_DONE,
    TOOK,
    WAS_LATE,
    WORKER,
    contradictions,
    lost_after_first,
)

ANNOUNCED_NS = 4_000_000_000


class Totals:
    """Sums over all rounds, and the faults."""

    def __init__(self):
        self.publishers = self.subscriptions = self.getters = self.drained = 0
        self.published = self.published_bytes = self.taken = self.taken_bytes = self.got = 0
        self.lost = self.skipped = self.unreported = self.reliable_lost = 0
        self.links = 0
        self.workers = self.claimed = self.done = self.redelivered = self.dead = 0
        self.work_lost = self.done_twice_unmarked = self.work_unknown = 0
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


GROUPS = "abc"
LAST_ATTEMPT = {"a": 60, "b": 2}  # as in tests/actor/story_work.c


class Message:
    """What the workers of a group did with a message. took: [(ns, pid, attempt)]."""

    def __init__(self):
        self.took, self.says, self.did = [], 0, 0

    def attempts(self):
        return [x for _, _, x in self.took]

    def __str__(self):
        took = ", ".join(
            f"by {pid} at {ns / 1e6:.3f} ms as attempt {x}" for ns, pid, x in sorted(self.took)
        )
        return f"taken {took}; done {self.did} times"


def judge_queues(objects, steps, n_killed, restarts, totals):
    """Nothing that was published to a declared group is lost, and nothing is taken twice without a
    mark. `steps` of all workers of a round; `n_killed` of its processes may have taken a message,
    and noted nothing."""
    publishers = {o.key: o for o in objects if o.kind == PUBLISHER}
    messages = {}
    for pid, ns, key, seq, group, attempt, what in steps:
        p = publishers.get(key)
        if not p or seq > p.begun:
            totals.faults.append(f"a worker had message {seq} of key {key}, which has not")
            continue
        m = messages.setdefault((key, group), {}).setdefault(seq, Message())
        if what == TOOK:
            m.took.append((ns, pid, attempt))
        m.says += what == SAYS_DONE
        m.did += what == DID
        if what == WAS_LATE and not restarts:
            totals.faults.append(f"{p}: group {GROUPS[group]} took message {seq} from a worker")
    for (key, group), by_seq in messages.items():
        where = f"{publishers[key]}, key {key}, group {GROUPS[group]}"
        for seq, m in by_seq.items():
            totals.claimed += len(m.took)
            totals.done += m.did > 0
            totals.redelivered += sum(x > 1 for x in m.attempts())
            if m.attempts().count(1) > 1 or (m.did > 1 and not restarts):
                totals.done_twice_unmarked += 1
                totals.faults.append(
                    f"{where}: message {seq} was {m}; the daemon was away at "
                    f"{[round(x / 1e6, 3) for r in restarts for x in r]} ms"
                )
    for p in publishers.values():
        for group in range(2 if p.flags & DECLARES else 0):
            judge_group(p, group, messages.get((p.key, group), {}), n_killed, restarts, totals)


def judge_group(p, group, by_seq, n_killed, restarts, totals):
    missing = [n for n in range(1, p.done + 1) if n not in by_seq or not by_seq[n].says]
    last = LAST_ATTEMPT[GROUPS[group]]
    dead = [n for n in missing if n in by_seq and max(by_seq[n].attempts(), default=0) >= last]
    totals.dead += len(dead)
    lost = sorted(set(missing) - set(dead))
    if GROUPS[group] == "b" and len(lost) <= n_killed:
        totals.dead += len(lost)
        return
    if not lost:
        return
    if not outlived(p, restarts):
        totals.work_unknown += len(lost)
        return
    totals.work_lost += len(lost)
    totals.faults.append(
        f"{p}, key {p.key}, state {p.state}: group {GROUPS[group]} has not done {len(lost)} of "
        f"{p.done} messages: {lost[:10]}, of which "
        f"{[f'{n} was {by_seq[n]}' for n in lost[:10] if n in by_seq]}"
    )


def outlived(p, restarts):
    """Did no daemon end that had what the publisher left?"""
    if p.state < CLOSED:
        return not any(end > p.begun_ns for _, end in restarts)
    return not any(end > p.begun_ns and end + ANNOUNCED_NS > p.ended_ns for _, end in restarts)
