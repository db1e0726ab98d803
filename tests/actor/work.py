# SPDX-License-Identifier: Apache-2.0
"""Judges what workers did with the messages of queues, and what became of calls."""

from ledger import (
    ANSWERS,
    ASKS,
    CALLER,
    CANCELLED,
    CLOSED,
    DECLARES,
    DID,
    GOT,
    KEYS_OF_PROCESS,
    NOT_ASKED,
    PUBLISHER,
    SAYS_DONE,
    SERVES,
    TOOK,
    WAS_ASKED,
    WAS_LATE,
)

ANNOUNCED_NS = 4_000_000_000

# ---- queues --------------------------------------------------------------------------------------

OF_WORK = (TOOK, SAYS_DONE, DID, WAS_LATE)
GROUPS = "abc"
LAST_ATTEMPT = {"a": 60, "b": 2}  # as in story_work.c


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


def judge_queues(objects, steps, n_killed, restarts, totals, n_groups=2):
    """Nothing that was published to a declared group is lost, and nothing is taken twice without a
    mark. `steps` of all workers of a round; `n_killed` of its processes may have taken a message,
    and noted nothing. A publisher that declares groups declares the first `n_groups`."""
    publishers = {o.key: o for o in objects if o.kind == PUBLISHER}
    messages = {}
    for pid, ns, key, seq, group, attempt, what in steps:
        if what not in OF_WORK:
            continue
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
        for group in range(n_groups if p.flags & DECLARES else 0):
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


# ---- calls ---------------------------------------------------------------------------------------

REPLY, ERROR, LET_GO = range(3)  # enum actor_answer
TIMEOUT, WORKER_GONE, CALL_FAILED = 3, 29, 30
LACKS = (2, 9, 11, 24, 25, 27)  # dlx_call() could not take the reply, or was interrupted
MAX_ATTEMPTS = 5  # of a service


class Call:
    """What a caller and servers did. served: [(ns, pid, attempt)], answers: [(ns, pid, answer)],
    got: [(ns, code)]."""

    def __init__(self):
        self.asks = self.was_asked = self.was_cancelled = self.is_idempotent = False
        self.served, self.answers, self.got = [], [], []

    def add(self, pid, ns, group, attempt, what):
        if what == ASKS:
            self.asks, self.is_idempotent = True, bool(group)
        elif what == WAS_ASKED:
            self.was_asked = True
        elif what == NOT_ASKED:
            self.asks = False
        elif what == GOT:
            self.got.append((ns, attempt))
        elif what == CANCELLED:
            self.was_cancelled = True
        elif what == SERVES:
            self.served.append((ns, pid, attempt))
        elif what == ANSWERS:
            self.answers.append((ns, pid, group))

    def has_answer(self, *kinds):
        return any(kind in kinds for _, _, kind in self.answers)

    def __str__(self):
        events = [(ns, f"taken by {pid} as attempt {x}") for ns, pid, x in self.served]
        events += [(ns, f"answered by {pid} ({kind})") for ns, pid, kind in self.answers]
        events += [(ns, f"ended with {-code}") for ns, code in self.got]
        words = ", ".join(f"{text} at {ns / 1e6:.3f} ms" for ns, text in sorted(events))
        return ("idempotent " if self.is_idempotent else "") + words


def judge_calls(objects, steps, n_killed, restarts, totals, hurt=None):
    """Each call has one outcome, that of its own request. `n_killed`: processes of this round, of
    which each may have served. `hurt`: the process in which a call of the system failed."""
    callers = {o.key: o for o in objects if o.kind == CALLER}
    calls = {}
    for pid, ns, key, seq, group, attempt, what in steps:
        if what not in OF_WORK:
            calls.setdefault((key, seq), Call()).add(pid, ns, group, attempt, what)
    for (key, seq), call in calls.items():
        caller = callers.get(key)
        is_hurt = hurt is not None and key // KEYS_OF_PROCESS == hurt
        for words in wrong_with(call, caller, (n_killed, restarts), is_hurt):
            totals.faults.append(f"call {seq} of {caller or key}: {words}: {call}")
        count_call(call, totals)


def wrong_with(call, caller, trouble, is_hurt):
    if not caller or not (call.asks or call.was_asked):
        if call.served:
            yield "a server had it, and no caller asked"
        return
    n = len(call.got) + call.was_cancelled
    if n > 1 or (n == 0 and call.was_asked and caller.state >= CLOSED):
        yield f"{n} outcomes"
    n_first = sum(attempt == 1 for _, _, attempt in call.served)
    if n_first > 1 or (len(call.served) > 1 and not call.is_idempotent):
        yield f"was taken {len(call.served)} times, {n_first} of them as the first"
    for _, code in call.got:
        if not (is_hurt and code in LACKS):
            yield from wrong_result(call, code, trouble)


def wrong_result(call, code, trouble):
    if code == 0 and not call.has_answer(REPLY):
        yield "a reply that no server gave"
    elif code == CALL_FAILED and not call.has_answer(ERROR, LET_GO):
        yield "an error that no server gave"
    elif code == WORKER_GONE and not any(trouble):
        yield "no worker was killed"
    elif code == WORKER_GONE and call.is_idempotent and not survived(call, trouble):
        yield "no other worker got it"
    elif code not in (0, TIMEOUT, WORKER_GONE, CALL_FAILED):
        yield f"it ended with error {-code}"


def survived(call, trouble):
    """Did it survive its worker, as far as can be? The reply of a worker may be lost with it."""
    _, restarts = trouble
    return restarts or call.answers or len(call.served) >= MAX_ATTEMPTS


def count_call(call, totals):
    totals.calls += call.was_asked
    totals.calls_cancelled += call.was_cancelled
    totals.served_again += max(0, len(call.served) - 1)
    for _, code in call.got:
        totals.replies += code == 0
        totals.calls_timed_out += code == TIMEOUT
        totals.workers_gone += code == WORKER_GONE
        totals.calls_failed += code == CALL_FAILED
