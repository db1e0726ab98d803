# SPDX-License-Identifier: Apache-2.0
"""What is counted, by strace and callgrind: system calls and instructions of a message."""

import os
import re
import shutil
import subprocess
import tempfile

from harness import Daemon, Failure, Row, median
from row_tools import BATCH, run_frames


def parse_trace(path, who=None):
    """[(seconds, system call)] of a `strace -f -ttt -o` file, of all of its processes or of one."""
    calls = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            pid, stamp, rest = line.split(None, 2)
            if who not in (None, pid) or rest.startswith(("+++", "---", "<...")):
                continue
            calls.append((float(stamp), rest.split("(", 1)[0]))
    return calls


def window(calls, who):
    marks = [i for i, (_, name) in enumerate(calls) if name == "getppid"]
    if len(marks) != 3:
        raise Failure(f"strace of the {who} shows {len(marks)} markers instead of 3")
    return marks[1:]


def syscalls(bench):
    """Counted by strace from the start; getppid() marks the steady state."""
    names = {
        "syscalls_publish": "system calls a 4K frame, publisher, subscriber awake (strace)",
        "syscalls_take": "system calls a 4K frame, subscriber that spins between frames (strace)",
        "syscalls_daemon": "system calls a 4K frame, daemon (strace)",
    }
    if not shutil.which("strace"):
        return [
            Row(n, None, "", m, ("<=", 0), reason="strace is not installed")
            for n, m in names.items()
        ]
    n = 100 if bench.quick else 300
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        traces = {role: f"{folder}/{role}" for role in ("publisher", "subscriber", "daemon")}
        daemon = Daemon(bench.build, folder, strace_output=traces["daemon"])
        try:
            run_frames(
                bench,
                n,
                200,
                socket=daemon.socket,
                traces={k: traces[k] for k in ("publisher", "subscriber")},
            )
        finally:
            daemon.stop()
        calls = {role: parse_trace(path) for role, path in traces.items()}
    count = {}
    for role in ("publisher", "subscriber"):
        first, last = window(calls[role], role)
        count[role] = last - first - 1
        if role == "publisher":
            begin, end = calls[role][first][0], calls[role][last][0]
    count["daemon"] = sum(1 for stamp, _ in calls["daemon"] if begin < stamp < end)
    roles = ("publisher", "subscriber", "daemon")
    # A subscriber that spins looks for new publishers now and then: no bar for it.
    out = [
        Row(name, [count[role] / n], "", meaning, None if role == "subscriber" else ("<=", 0))
        for (name, meaning), role in zip(names.items(), roles)
    ]
    # That strace saw what there was to see: calls outside of the window.
    out.append(
        Row(
            "syscalls_seen_outside",
            [min(len(calls[r]) - count[r] for r in roles)],
            "",
            "system calls that the same traces show outside of the steady state, fewest",
        )
    )
    return out


def syscalls_sleep(bench):
    """strace counts the system calls between two getppid() of the subscriber, which mark a take."""
    name, meaning = (
        "syscalls_take_sleep",
        "system calls of a take that sleeps, spinning off, median (strace)",
    )
    if not shutil.which("strace"):
        return [
            Row(name, None, "", meaning, ("<=", 2), reason="strace is not installed", skipped=True)
        ]
    n = 100 if bench.quick else 500
    trace = os.path.join(bench.folder, "sleep.strace")
    r = bench.finish(bench.start("sleep", n=n, prefix=("strace", "-f", "-ttt", "-o", trace)))
    with open(trace, encoding="utf-8", errors="replace") as lines:
        who = next(line.split(None, 1)[0] for line in lines if "getppid(" in line)
    calls = parse_trace(trace, who)
    first, last = window(calls, "subscriber")
    names = [call for _, call in calls[first + 1 : last]]
    commonest = max(set(names), key=names.count)  # once a take
    at = [i for i, call in enumerate(names) if call == commonest]
    return [
        Row(name, [median(b - a for a, b in zip(at, at[1:]))], "", meaning, ("<=", 2)),
        Row(
            "syscalls_take_sleep_mean",
            [len(names) / n],
            "",
            "the mean: now and then it looks for news of the daemon",
        ),
        Row(
            "syscalls_take_sleeps",
            [r["sleeps_per_take"]],
            "",
            "times that it slept for each of those takes",
        ),
    ]


# What a message costs from its allocation to its release, in the order of the calls.
INSTRUCTIONS = {
    "dlx_alloc": "alloc",
    "dlx_publish": "publish",
    "dlx_take": "take",
    "dlx_message_tensor": "tensor",
    "dlx_message_unref": "unref",
    "cycle_release": "release",
}
INSTRUCTIONS_BATCH = [
    name + "_n" if name in ("dlx_publish", "dlx_take") else name for name in INSTRUCTIONS
]


def instructions(bench):
    """callgrind counts the instructions of bench_cycle: the count does not depend on the load."""
    where = "a message of 64 B, one subscriber, which is awake (callgrind)"
    bars = {"instructions_message": ("<=", 694), f"instructions_message_batch{BATCH}": ("<=", 640)}
    single, batch = bars
    meanings = {
        single: f"instructions from dlx_alloc to the deleter, {where}",
        batch: f"likewise, {BATCH} messages at a time by dlx_publish_n and dlx_take_n, "
        f"depth {2 * BATCH}",
    }
    if not shutil.which("valgrind"):
        return [
            Row(
                name,
                None,
                "",
                meanings[name],
                bar,
                skipped=True,
                reason="valgrind is not installed",
            )
            for name, bar in bars.items()
        ]
    each = counted(bench, INSTRUCTIONS, 1)
    batched = counted(bench, INSTRUCTIONS_BATCH, BATCH)
    return [
        Row(single, [sum(each.values())], "", meanings[single], bars[single]),
        Row(batch, [sum(batched.values())], "", meanings[batch], bars[batch]),
    ] + [
        Row(
            f"instructions_{name}",
            [each[function]],
            "",
            f"of that {'the deleter' if function == 'cycle_release' else function}",
        )
        for function, name in INSTRUCTIONS.items()
    ]


def counted(bench, functions, batch):
    """{function: instructions a message, with those of what it calls}. The difference of two runs
    leaves out their beginning and end."""
    few, many = 2_048, 10_240  # multiples of the batch
    a, b = (callgrind(bench, functions, n=n, batch=batch) for n in (few, many))
    return {function: (b[function] - a[function]) / (many - few) for function in functions}


def callgrind(bench, functions, **options):
    """{function: instructions of a run of bench_cycle}"""
    out = os.path.join(bench.folder, "callgrind.out")
    bench.finish(
        bench.start(
            "cycle",
            **options,
            prefix=("valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"),
        )
    )
    text = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--auto=no", out],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    ).stdout
    found = {}
    # "1,023,415 (15.89%)  client/publish/publish.c:dlx_alloc"; a function that is inlined from
    # another file has a smaller line besides.
    for count, function in re.findall(r"^ *([\d,]+) \([^)]*\)  [^:\n]*:(\w+)", text, re.MULTILINE):
        found[function] = max(found.get(function, 0), int(count.replace(",", "")))
    missing = [function for function in functions if function not in found]
    if missing:
        raise Failure(f"callgrind does not show {', '.join(missing)}")
    return found


GROUPS = {"syscalls": syscalls, "syscalls_sleep": syscalls_sleep, "instructions": instructions}
