# SPDX-License-Identifier: Apache-2.0
"""What is measured. Each function measures a group and returns its rows.

Names are those of build/bench.json. A peer joins a comparison as one more contestant of alternate()
and one more ratio.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from harness import SOURCE, Daemon, Failure, Row, median, proc_kib

SIZES = {"64B": 64, "4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}


DEPTH, BATCH = 256, 32  # of the rows that say so; the peers of peer_rows have queues of 256, too


def values(results, key, scale=1.0):
    return [r[key] * scale for r in results]


def ratios(results, others, key="p50_ns"):
    return [a[key] / b[key] for a, b in zip(results, others)]


def rounds(bench):
    return 5 if bench.quick else 9


FLOOR_JUDGED_NS = 50  # below it a message cannot be what two cache lines are: its instructions alone take as long


def latency_busy(bench):
    n = 40_000 if bench.quick else 300_000
    n_large = n // 2
    contestants = {"floor": lambda: bench.run("floor", what="cacheline", n=n)}
    for name, size in SIZES.items():
        count = n_large if size > 1 << 20 else n
        contestants[name] = lambda size=size, count=count: bench.run(
            "latency", mode="busy", size=size, n=count
        )
    r = bench.alternate(contestants, rounds(bench))
    floor = Row("floor_cacheline_p50_ns", values(r["floor"], "p50_ns"), "ns",
                "cache-line ping-pong, one way, p50")
    judged = floor.value >= FLOOR_JUDGED_NS
    out = [
        Row("lat_busy_vs_floor", ratios(r["64B"], r["floor"]), "",
            "one-way p50, 64 B, busy / cache-line ping-pong" +
            ("" if judged else f"; no bar: the floor is below {FLOOR_JUDGED_NS} ns"),
            ("<=", 2.0) if judged else None),
        floor,
        Row("lat_busy_flat", ratios(r["64MiB"], r["64B"]), "",
            "one-way p50, busy, 64 MiB / 64 B", ("<=", 1.1)),
    ]
    for name in ("1MiB", "64MiB"):
        out.append(Row(f"lat_busy_vs_floor_{name}", ratios(r[name], r["floor"]), "",
                       f"one-way p50, {name}, busy / cache-line ping-pong"))
    out.append(Row("floor_cacheline_p99_ns", values(r["floor"], "p99_ns"), "ns",
                   "cache-line ping-pong, one way, p99"))
    for key in ("p50_ns", "p99_ns"):
        for name in SIZES:
            out.append(Row(f"lat_busy_{name}_{key}", values(r[name], key), "ns",
                           f"one-way {key[:3]}, busy, {name}"))
    sleeps = [x["sleeps_per_take"] for name in SIZES for x in r[name]]
    out.append(Row("lat_busy_sleeps_per_take", [max(sleeps)], "",
                   "sleeps a take in the busy rows, largest", ("<=", 0)))
    return out


FORMER = "e18abab"


def former(bench):
    """This build and that of a former commit in turns, each with its own daemon."""
    bars = {"lat_busy_vs_former": ("<=", 0.75), "rate_vs_former": None}
    meanings = {
        "lat_busy_vs_former": f"one-way p50, 64 B, busy, this build / commit {FORMER}",
        "rate_vs_former": f"messages a second, 64 B, one to one, all delivered, depth {DEPTH}, "
                          f"this build / commit {FORMER}",
    }
    if not bench.former:
        reason = f"BENCH_FORMER does not name the build folder of commit {FORMER}"
        return [Row(name, None, "", meanings[name], bar, reason=reason, skipped=True)
                for name, bar in bars.items()]
    n = 40_000 if bench.quick else 300_000
    options = {
        "latency": {"mode": "busy", "size": 64, "n": n},
        "rate": {"full": "spin", "n": 5 * n, "depth": DEPTH, "slots": DEPTH},  # what it was called then
    }
    with own_daemon(bench, bench.former) as daemon:
        then = {"build": bench.former, "socket": daemon.socket}
        r = bench.alternate({
            (who, what): lambda what=what, where=where: bench.run(what, **options[what], **where)
            for what in options
            for who, where in (("ours", {}), ("former", then))
        }, rounds(bench))
    out = [
        Row(name, ratios(r["ours", what], r["former", what], key), "", meanings[name], bars[name])
        for name, what, key in (("lat_busy_vs_former", "latency", "p50_ns"), ("rate_vs_former", "rate", "per_s"))
    ]
    for key in ("p50_ns", "p99_ns"):
        for who in ("ours", "former"):
            out.append(Row(f"{who}_beside_former_{key}", values(r[who, "latency"], key), "ns",
                           f"{key[:3]} of {'this build' if who == 'ours' else 'that commit'} in that row"))
    return out


def latency_block(bench):
    n = 2_000 if bench.quick else 12_000
    r = bench.alternate(
        {
            "floor": lambda: bench.run("floor", what="socketpair", n=n),
            "ours": lambda: bench.run("latency", mode="block", size=64, n=n),
            "ours_1MiB": lambda: bench.run("latency", mode="block", size=1 << 20, n=n),
        },
        rounds(bench),
    )
    out = [
        Row("lat_block_vs_floor", ratios(r["ours"], r["floor"]), "",
            "one-way p50, 64 B, spinning off / socketpair ping-pong by poll + recv",
            ("<=", 1.15)),
        Row("lat_block_sleeps_per_take", values(r["ours"], "sleeps_per_take"), "",
            "sleeps a take in that row: it slept every time"),
    ]
    for key in ("p50_ns", "p99_ns"):
        out.append(Row(f"floor_socketpair_{key}", values(r["floor"], key), "ns",
                       f"socketpair ping-pong, one way, {key[:3]}"))
        out.append(Row(f"lat_block_64B_{key}", values(r["ours"], key), "ns",
                       f"one-way {key[:3]}, spinning off, 64 B"))
        out.append(Row(f"lat_block_1MiB_{key}", values(r["ours_1MiB"], key), "ns",
                       f"one-way {key[:3]}, spinning off, 1 MiB"))
    return out


def rate(bench):
    n = 500_000 if bench.quick else 2_000_000
    contestants = {
        "": {"full": "spin"},
        f"_depth{DEPTH}": {"full": "spin", "depth": DEPTH},
        f"_batch{BATCH}": {"full": "spin", "depth": DEPTH, "batch": BATCH},
        "_blocking": {"full": "block", "n": n // 5},
    }
    r = bench.alternate(
        {name: lambda o=options: bench.run("rate", **{"n": n, **o}) for name, options in contestants.items()},
        rounds(bench),
    )
    what = {
        "": "messages a second, 64 B, one to one, all delivered, depth 16, the default",
        f"_depth{DEPTH}": f"likewise, depth {DEPTH}",
        f"_batch{BATCH}": f"likewise, depth {DEPTH}, dlx_publish_n and dlx_take_n of up to {BATCH}",
        "_blocking": "likewise, depth 16, the publisher waits in dlx_publish() when it is ahead",
    }
    out = [Row(f"rate_64B{name}_per_s", values(r[name], "per_s"), "/s", meaning)
           for name, meaning in what.items()]
    return out + [Row(f"rate_64B{name}_p50_ns", values(r[name], "p50_ns"), "ns",
                      "the subscriber's time a message in that row, median of pieces of 1,024")
                  for name in what]


def fanout(bench):
    counts = [1, 64] if bench.quick else [0, 1, 2, 4, 8, 16, 32, 64]
    n = 5_000 if bench.quick else 20_000
    contestants = {
        (active, count): lambda active=active, count=count: bench.run(
            "fanout", subscribers=count, active=active, n=n
        )
        for active in (0, 1)
        for count in counts
        if count or not active
    }
    r = bench.alternate(contestants, 5)
    out = [
        Row("fanout_64", ratios(r[0, 64], r[0, 1]), "",
            "cost of a publish, 64 subscribers attached, none asleep / with 1", ("<=", 4.0)),
        Row("fanout_64_active", ratios(r[1, 64], r[1, 1]), "",
            "likewise while one process takes from all of them in turn"),
    ]
    for (active, count), results in r.items():
        suffix = "_active" if active else ""
        how = "which take all the time" if active else "which take nothing"
        out.append(Row(f"publish_{count}_subscribers{suffix}_ns", values(results, "p50_ns"), "ns",
                       f"alloc and publish of 64 B, {count} subscribers" +
                       (f" {how}" if count else "")))
    return out


FRAME_RATE = 200  # each frame is written and read in time, so that none is lost


def run_frames(bench, n, warmup, rate=FRAME_RATE, socket=None, traces=None):
    topic = f"bench/frames-{time.monotonic_ns()}"
    prefix = {"publisher": (), "subscriber": ()}
    for role, path in (traces or {}).items():
        prefix[role] = ("strace", "-f", "-ttt", "-o", path)
    options = {"topic": topic, "n": n, "warmup": warmup, "rate": rate, "socket": socket}
    roles = ("subscriber", "publisher")
    processes = {
        role: bench.start("frames", prefix=prefix[role], role=role, **options) for role in roles
    }
    try:
        return {role: bench.finish(processes[role]) for role in ("publisher", "subscriber")}
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
                process.communicate()


def frames(bench):
    n = 100 if bench.quick else 300
    r = bench.alternate(
        {
            "paced": lambda: run_frames(bench, n, 200),
            "full": lambda: run_frames(bench, n, 200, rate=0),
        },
        3 if bench.quick else 5,
    )
    publishers = [x["publisher"] for x in r["paced"]]
    subscribers = [x["subscriber"] for x in r["paced"]]
    both = [(p["faults"] + s["faults"]) / n for p, s in zip(publishers, subscribers)]
    return [
        Row("faults_per_frame", both, "", "page faults a 4K frame, publisher and subscriber",
            ("<=", 0)),
        Row("copied_bytes_per_frame", values(publishers, "copied_bytes", 1 / n), "",
            "payload bytes copied a 4K frame by dlx_alloc", ("<=", 0)),
        Row("frames_lost_per_frame", values(subscribers, "lost", 1 / n), "",
            f"4K frames lost at {FRAME_RATE} frames a second", ("<=", 0)),
        Row("frames_arena_mib", values(publishers, "arena_bytes", 2**-20), "MiB",
            "arenas of that publisher"),
        Row("frames_4k_per_s", [x["publisher"]["frames_per_s"] for x in r["full"]], "/s",
            "4K frames a second at full speed, every byte written; it drops what is not read in time"),
    ]


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
        return [Row(n, None, "", m, ("<=", 0), reason="strace is not installed")
                for n, m in names.items()]
    n = 100 if bench.quick else 300
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        traces = {role: f"{folder}/{role}" for role in ("publisher", "subscriber", "daemon")}
        daemon = Daemon(bench.build, folder, strace_output=traces["daemon"])
        try:
            run_frames(bench, n, 200, socket=daemon.socket,
                       traces={k: traces[k] for k in ("publisher", "subscriber")})
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
    out = [Row(name, [count[role] / n], "", meaning, None if role == "subscriber" else ("<=", 0))
           for (name, meaning), role in zip(names.items(), roles)]
    # That strace saw what there was to see: calls outside of the window.
    out.append(Row("syscalls_seen_outside", [min(len(calls[r]) - count[r] for r in roles)], "",
                   "system calls that the same traces show outside of the steady state, fewest"))
    return out


def syscalls_sleep(bench):
    """Counted by strace between the getppid() of the subscriber; takes are told apart by what all of them do."""
    name, meaning = "syscalls_take_sleep", "system calls of a take that sleeps, spinning off, median (strace)"
    if not shutil.which("strace"):
        return [Row(name, None, "", meaning, ("<=", 2), reason="strace is not installed", skipped=True)]
    n = 100 if bench.quick else 500
    trace = os.path.join(bench.folder, "sleep.strace")
    r = bench.finish(bench.start("sleep", n=n, prefix=("strace", "-f", "-ttt", "-o", trace)))
    with open(trace, encoding="utf-8", errors="replace") as lines:
        who = next(line.split(None, 1)[0] for line in lines if "getppid(" in line)
    calls = parse_trace(trace, who)
    first, last = window(calls, "subscriber")
    names = [call for _, call in calls[first + 1:last]]
    commonest = max(set(names), key=names.count)  # once a take
    at = [i for i, call in enumerate(names) if call == commonest]
    return [
        Row(name, [median(b - a for a, b in zip(at, at[1:]))], "", meaning, ("<=", 2)),
        Row("syscalls_take_sleep_mean", [len(names) / n], "", "the mean: now and then it looks for news of the daemon"),
        Row("syscalls_take_sleeps", [r["sleeps_per_take"]], "", "times that it slept for each of those takes"),
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
INSTRUCTIONS_BATCH = [name + "_n" if name in ("dlx_publish", "dlx_take") else name for name in INSTRUCTIONS]


def instructions(bench):
    """Counted by callgrind over bench_cycle, so that they are the same on a machine that does other things."""
    where = "a message of 64 B, one subscriber, nobody asleep (callgrind)"
    bars = {"instructions_message": ("<=", 690), f"instructions_message_batch{BATCH}": ("<=", 640)}
    single, batch = bars
    meanings = {
        single: f"instructions from dlx_alloc to the deleter, {where}",
        batch: f"likewise, {BATCH} messages at a time by dlx_publish_n and dlx_take_n, depth {2 * BATCH}",
    }
    if not shutil.which("valgrind"):
        return [Row(name, None, "", meanings[name], bar, skipped=True, reason="valgrind is not installed")
                for name, bar in bars.items()]
    each = counted(bench, INSTRUCTIONS, 1)
    batched = counted(bench, INSTRUCTIONS_BATCH, BATCH)
    return [
        Row(single, [sum(each.values())], "", meanings[single], bars[single]),
        Row(batch, [sum(batched.values())], "", meanings[batch], bars[batch]),
    ] + [
        Row(f"instructions_{name}", [each[function]], "",
            f"of that {'the deleter' if function == 'cycle_release' else function}")
        for function, name in INSTRUCTIONS.items()
    ]


def counted(bench, functions, batch):
    """{function: instructions a message, with those of what it calls}: a difference, without beginning and end."""
    few, many = 2_048, 10_240  # multiples of the batch
    a, b = (callgrind(bench, functions, n=n, batch=batch) for n in (few, many))
    return {function: (b[function] - a[function]) / (many - few) for function in functions}


def callgrind(bench, functions, **options):
    """{function: instructions of a run of bench_cycle}"""
    out = os.path.join(bench.folder, "callgrind.out")
    bench.finish(bench.start("cycle", **options, prefix=(
        "valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}")))
    text = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--auto=no", out],
                          capture_output=True, text=True, check=True, cwd="/").stdout
    found = {}
    # "1,023,415 (15.89%)  client/publish.c:dlx_alloc"; what is inlined from another file has a smaller line besides.
    for count, function in re.findall(r"^ *([\d,]+) \([^)]*\)  [^:\n]*:(\w+)", text, re.MULTILINE):
        found[function] = max(found.get(function, 0), int(count.replace(",", "")))
    missing = [function for function in functions if function not in found]
    if missing:
        raise Failure(f"callgrind does not show {', '.join(missing)}")
    return found


def copyin(bench):
    r = bench.alternate({"ours": lambda: bench.run("copyin", n=5 if bench.quick else 20)}, 5)["ours"]
    return [
        Row("copyin_vs_memcpy", [x["copyin_gb_per_s"] / x["memcpy_gb_per_s"] for x in r], "",
            "copy-in of a 64 MiB private tensor / memcpy into a warm map", (">=", 0.95)),
        Row("copyin_vs_memcpy_rotating",
            [x["copyin_gb_per_s"] / x["memcpy_rotating_gb_per_s"] for x in r], "",
            "likewise / memcpy into as many places as the publisher has"),
        Row("copyin_gb_per_s", values(r, "copyin_gb_per_s"), "GB/s", "copy-in bandwidth, 64 MiB"),
        Row("memcpy_gb_per_s", values(r, "memcpy_gb_per_s"), "GB/s",
            "plain memcpy into one warm map, 64 MiB"),
    ]


def memory(bench):
    """Other sizes in each round: an allocator may be lucky with some."""
    n, warmup, rounds = (300, 300, 2) if bench.quick else (4_000, 1_000, 5)
    free = proc_kib("meminfo", "MemAvailable") << 10
    meaning = ("peak memory of all regions / peak live payload bytes, sizes log-uniform from 4 KiB to 64 MiB, "
               "1 GiB live, after warm-up")
    if free < 4 << 30:
        return [Row("mem_overhead", None, "", meaning, ("<=", 1.15), skipped=True,
                    reason=f"needs 4 GiB of memory, {free >> 20:,} MiB are free")]
    r = [bench.run("memory", n=n, warmup=warmup, seed=seed + 1, daemon=bench.daemon.process.pid)
         for seed in range(rounds)]
    return [Row("mem_overhead", values(r, "ratio"), "", meaning, ("<=", 1.15)),
            Row("mem_overhead_arenas", values(r, "arena_ratio"), "",
                "likewise, of the publisher's arenas alone, as dlx_publisher_get_stats() says"),
            Row("mem_message_ms", values(r, "message_ms"), "ms",
                "what one of those messages takes, publish, take and release, 6.9 MiB untouched on average"),
            Row("mem_arenas", values(r, "arenas"), "", "arenas of that publisher, at the end")]


def sets(bench):
    r = [bench.run("set", n=20 if bench.quick else 50) for _ in range(3 if bench.quick else 5)]
    what = "publish, take and build a set of 20,000 tensors that lie in shared memory"
    return [
        Row("statedict_20k_ms", values(r, "p50_ns", 1e-6), "ms", what, ("<=", 5)),
        Row("statedict_20k_first_ms", values(r, "first_ns", 1e-6), "ms",
            "likewise, the first set of a publisher", ("<=", 5)),
        Row("statedict_20k_arenas", values(r, "arenas_of_first"), "", "arenas that the first set takes",
            ("<=", 1)),
    ]


def attach(bench):
    n = 300 if bench.quick else 1000
    out = []
    for links, suffix, bar in ((0, "_no_links", None), (1000, "", ("<=", 1000))):
        meaning = f"connect and subscribe to a live topic, {links:,} other links present"
        try:
            r = [bench.run("attach", n=n, links=links) for _ in range(3 if bench.quick else 5)]
        except Failure as e:
            out.append(Row(f"attach_p99_us{suffix}", None, "us", meaning, bar, reason=str(e)))
            continue
        for key in ("p99", "p50"):
            out.append(Row(f"attach_{key}_us{suffix}", values(r, f"{key}_ns", 1e-3), "us",
                           f"{meaning}, {key}", bar if key == "p99" else None))
    return out


@contextlib.contextmanager
def own_daemon(bench, build=None):
    """One that nobody else talks to, and that takes what it keeps with it."""
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        daemon = Daemon(build or bench.build, folder)
        try:
            yield daemon
        finally:
            daemon.stop()


def daemon_memory(bench):
    with own_daemon(bench) as daemon:
        time.sleep(0.3)
        idle = daemon.rss_mib()
    return [Row("daemon_rss_idle_mib", [idle], "MiB", "resident memory of a daemon without clients",
                ("<=", 5))]


TOPICS, TOPICS_LESS, TOPIC_LINKS = 10_000, 5_000, 1_000


def topics(bench):
    """With 10,000 topics; where the daemon may not have the file descriptors for that, with 5,000."""
    try:
        return quiet_topics(bench, TOPICS)
    except Failure as e:
        if "file descriptors" not in str(e):
            raise
        rows = [
            Row(name, None, unit, f"{TOPICS:,} topics", reason=str(e), skipped=True)
            for name, unit in (("daemon_rss_10k_topics_mib", "MiB"), ("attach_10k_p99_us", "us"))
        ]
        return rows + quiet_topics(bench, TOPICS_LESS)


def longest_turn_ms(bench, daemon):
    """Of its loop, in CPU time of its thread."""
    info = subprocess.run([str(bench.build / "dlxctl"), "info", "--json"], check=True,
                          capture_output=True, env=dict(os.environ, DLX_SOCKET=daemon.socket))
    return json.loads(info.stdout)["longest_turn_ns"] / 1e6


def quiet_topics(bench, n):
    there = f"{n:,} topics with a message each, {TOPIC_LINKS:,} links"
    k = f"{n // 1000}k"
    with own_daemon(bench) as daemon:
        options = {"topics": n, "links": TOPIC_LINKS, "socket": daemon.socket}
        with bench.holding("topics", **options) as (_, held):
            rss = daemon.rss_mib()
            r = [
                bench.run("attach", n=300 if bench.quick else 1000, socket=daemon.socket)
                for _ in range(3 if bench.quick else 5)
            ]
        turn = longest_turn_ms(bench, daemon)  # with the end of all publishers
    full = n == TOPICS  # the bars are about that
    return [
        Row(f"daemon_rss_{k}_topics_mib", [rss], "MiB", f"resident memory of the daemon, {there}",
            ("<=", 64) if full else None),
        Row("topic_shared_kib", [held["shared_bytes_a_topic"] / 1024], "KiB",
            "shared memory of such a topic: control block and arena"),
        Row(f"attach_{k}_p99_us", values(r, "p99_ns", 1e-3), "us",
            f"connect and subscribe to a live topic, {there}, p99", ("<=", 1000) if full else None),
        Row(f"attach_{k}_p50_us", values(r, "p50_ns", 1e-3), "us", "likewise, p50"),
        Row(f"daemon_turn_{k}_ms", [turn], "ms",
            f"longest turn of the daemon's loop in CPU time, {there}, and their end", ("<=", 5)),
        Row(f"announce_{k}_p99_us", [held["p99_ns"] / 1e3], "us",
            f"dlx_publisher_new, {there}, p99"),
        Row(f"announce_{k}_p50_us", [held["p50_ns"] / 1e3], "us", "likewise, p50"),
        Row(f"announce_{k}_all_ms", [held["all_ns"] / 1e6], "ms",
            "all of these topics, announced by several processes at once, with their messages"),
    ]


PATTERN_TOPICS = 4_000


def pattern(bench):
    """Takes of what is there, so that none waits."""
    n = 300 if bench.quick else 2_000
    what = f"dlx_take from a pattern, {PATTERN_TOPICS:,} topics match it"
    contestants = {
        "1": {"topics": 1},
        "4k": {"topics": PATTERN_TOPICS},
        "4k_all": {"topics": PATTERN_TOPICS, "active": PATTERN_TOPICS},
    }
    with own_daemon(bench) as daemon:
        r = bench.alternate(
            {name: lambda o=options: bench.run("pattern", n=n, socket=daemon.socket, **o)
             for name, options in contestants.items()},
            3 if bench.quick else 5,
        )
    return [
        Row("pattern_4k_take", ratios(r["4k"], r["1"]), "", f"{what}, one of which publishes / one topic matches",
            ("<=", 1.2)),
        Row("pattern_4k_take_all", ratios(r["4k_all"], r["1"]), "",
            f"{what}, all publish in turn / one topic matches: what each take touches is in no cache"),
        Row("pattern_1_take_ns", values(r["1"], "p50_ns"), "ns", "a take and its release, one topic matches, p50"),
        Row("pattern_4k_take_ns", values(r["4k"], "p50_ns"), "ns",
            f"likewise, {PATTERN_TOPICS:,} match, one publishes"),
        Row("pattern_4k_take_all_ns", values(r["4k_all"], "p50_ns"), "ns", "likewise, all publish in turn"),
    ]


def lines(_):
    """What everything above has cost."""
    n = sum(path.read_bytes().count(b"\n") for folder in ("common", "client", "ring")
            for path in (SOURCE / folder).rglob("*.[ch]"))
    return [Row("lines", [n], "", "lines of C of common/, client/ and ring/", ("<=", 12_854))]


def retained(bench):
    size, name = (64 << 20, "64mib") if bench.quick else (1 << 30, "1gib")
    what = f"a retained set of {size >> 20:,} MiB in 300 tensors"
    names = {f"retained_{name}_attach_ms": "ms", "retained_memory_ratio": ""}
    total, free = (proc_kib("meminfo", x) << 10 for x in ("MemTotal", "MemAvailable"))
    if free < size * 3 // 2 or total // 2 < size * 5 // 4:
        why = f"{what} needs more memory than there is ({free >> 20:,} of {total >> 20:,} MiB free)"
        return [Row(n, None, u, what, reason=why, skipped=True) for n, u in names.items()]
    r, ratios_ = [], []
    with own_daemon(bench) as daemon:
        before = proc_kib("meminfo", "Shmem")
        published = bench.run("retained", role="publish", size=size, socket=daemon.socket)
        for _ in range(rounds(bench)):
            with bench.holding("retained", role="attach", socket=daemon.socket) as (process, held):
                used = proc_kib("meminfo", "Shmem") - before
                used += proc_kib(f"{process.pid}/status", "RssAnon")
                used += proc_kib(f"{daemon.process.pid}/status", "RssAnon")
            r.append(held)
            ratios_.append(used * 1024 / published["payload_bytes"])
    return [
        Row(f"retained_{name}_attach_ms", values(r, "ns", 1e-6), "ms",
            f"connect, get {what}, find one, read a byte of it; its publisher has ended", ("<=", 10)),
        Row(f"retained_{name}_get_ms", values(r, "get_ns", 1e-6), "ms", "of that dlx_get"),
        Row("retained_memory_ratio", ratios_, "",
            "shared memory, and own memory of subscriber and daemon / payload"),
    ]


def restart(bench):
    """A reliable stream whose daemon is killed and started anew."""
    n, r = (10 if bench.quick else 100), []
    with tempfile.TemporaryDirectory(dir=bench.folder) as folder:
        daemon = Daemon(bench.build, folder)
        try:
            process = bench.start("restart", stdin=subprocess.PIPE, socket=daemon.socket)
            for _ in range(n):
                time.sleep(0.1)
                os.killpg(daemon.process.pid, signal.SIGKILL)
                daemon.stop()
                daemon = Daemon(bench.build, folder)
            time.sleep(0.3)
            r.append(bench.finish(process))  # closes its input
        finally:
            daemon.stop()
    what = f"a reliable stream, a message a millisecond, through {n} kills of its daemon"
    return [
        Row("restart_lost", values(r, "missing"), "messages", what, ("<=", 0)),
        Row("restart_pause_ms", values(r, "pause_ns", 1e-6), "ms", "the longest time between two of its messages"),
    ]


GROUPS = {
    "latency_busy": latency_busy,
    "former": former,
    "latency_block": latency_block,
    "rate": rate,
    "fanout": fanout,
    "frames": frames,
    "syscalls": syscalls,
    "syscalls_sleep": syscalls_sleep,
    "instructions": instructions,
    "copyin": copyin,
    "memory": memory,
    "sets": sets,
    "attach": attach,
    "topics": topics,
    "pattern": pattern,
    "retained": retained,
    "restart": restart,
    "daemon": daemon_memory,
    "lines": lines,
}
