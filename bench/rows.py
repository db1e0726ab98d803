# SPDX-License-Identifier: Apache-2.0
"""What is measured of messages and memory. Each function measures a group and returns its rows;
counted_rows.py and daemon_rows.py have the others.

Names are those of build/bench.json. A peer joins a comparison as one more contestant of alternate()
and one more ratio.
"""

import counted_rows
import daemon_rows
from harness import SOURCE, Row, proc_kib
from row_tools import BATCH, DEPTH, FRAME_RATE, SIZES, ratios, rounds, run_frames, values

# Below it a message cannot be what two cache lines are: its instructions alone take as long.
FLOOR_JUDGED_NS = 50


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
        "rate": {"full": "spin", "n": 5 * n, "depth": DEPTH, "slots": DEPTH},  # as then
    }
    with daemon_rows.own_daemon(bench, bench.former) as daemon:
        then = {"build": bench.former, "socket": daemon.socket}
        r = bench.alternate({
            (who, what): lambda what=what, where=where: bench.run(what, **options[what], **where)
            for what in options
            for who, where in (("ours", {}), ("former", then))
        }, rounds(bench))
    out = [
        Row(name, ratios(r["ours", what], r["former", what], key), "", meanings[name], bars[name])
        for name, what, key in (("lat_busy_vs_former", "latency", "p50_ns"),
                                ("rate_vs_former", "rate", "per_s"))
    ]
    for key in ("p50_ns", "p99_ns"):
        for who in ("ours", "former"):
            out.append(Row(f"{who}_beside_former_{key}", values(r[who, "latency"], key), "ns",
                           f"{key[:3]} of "
                           f"{'this build' if who == 'ours' else 'that commit'} in that row"))
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
        {name: lambda o=options: bench.run("rate", **{"n": n, **o})
         for name, options in contestants.items()},
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


def queue(bench):
    """A group of one worker beside an ordinary subscription; and workers that wait."""
    n, n_ping = (500_000, 40_000) if bench.quick else (2_000_000, 300_000)
    r = bench.alternate(
        {(what, group): lambda program=program, group=group, options=options:
         bench.run(program, group=group, **options)
         for what, program, options in (
             ("rate", "rate", {"full": "spin", "n": n, "depth": DEPTH}),
             ("blocking", "rate", {"full": "block", "n": n, "depth": DEPTH}),
             ("latency", "latency", {"mode": "busy", "size": 64, "n": n_ping}))
         for group in (0, 1)},
        rounds(bench),
    )
    workers, bare = (
        [bench.run("queue", n=1_500 if bench.quick else 5_000, seed=seed + 1, bare=bare)
         for seed in range(2 if bench.quick else 5)] for bare in (0, 1))
    extra = [a["p50_ns"] - b["p50_ns"] for a, b in zip(r["latency", 1], r["latency", 0])]
    return [
        Row("queue_rate_vs_reliable", ratios(r["rate", 0], r["rate", 1], "per_s"), "",
            f"messages a second, 64 B, depth {DEPTH}: a reliable subscription / a group of one "
            "worker, which says done of each", ("<=", 1.4)),
        Row("queue_rate_64B_per_s", values(r["rate", 1], "per_s"), "/s",
            "messages a second of that worker"),
        Row("queue_rate_blocking_64B_per_s", values(r["blocking", 1], "per_s"), "/s",
            "likewise, the publisher waits in dlx_publish() when it is ahead"),
        Row("queue_rate_blocking_reliable_64B_per_s", values(r["blocking", 0], "per_s"), "/s",
            "likewise, a reliable subscription"),
        Row("queue_lat_busy_extra_ns", extra, "ns",
            "one-way p50, 64 B, busy: a group of one worker, less a subscription", ("<=", 80)),
        Row("queue_idle_share", values(workers, "idle_share"), "",
            "share of time in which a worker sleeps while a message waits: 4 workers, 70 % load, "
            "work of 0.1 to 10 ms that is slept", ("<=", 0.01)),
        Row("queue_idle_bare_share", values(bare, "idle_share"), "",
            "likewise of processes that read an eventfd: what the kernel needs to wake them"),
        Row("queue_idle_p50_us", values(workers, "idle_p50_ns", 1e-3), "us",
            "how long that takes each time: what a worker needs to wake up"),
        Row("queue_idle_max_us", values(workers, "idle_max_ns", 1e-3), "us",
            "likewise, the longest"),
        Row("queue_sleeps_per_message", values(workers, "sleeps_per_message"), "",
            "sleeps a message of all workers in that row"),
    ]


def first_call(bench):
    n, n_rounds = (50, 3) if bench.quick else (200, 5)
    r = [bench.run("call", first=1, mode="default", n=n) for _ in range(n_rounds)]
    what = "from the end of dlx_connect() to the first reply, of a new process"
    return [Row("call_first_ms", values(r, "p50_ns", 1e-6), "ms", f"{what}, p50", ("<=", 3)),
            Row("call_first_p99_ms", values(r, "p99_ns", 1e-6), "ms", f"{what}, p99")]


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
            "4K frames a second at full speed, every byte written; it drops what is not read in "
            "time"),
    ]


def copyin(bench):
    r = bench.alternate({"ours": lambda: bench.run("copyin", n=5 if bench.quick else 20)},
                        5)["ours"]
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
    meaning = ("peak memory of all regions / peak live payload bytes, sizes log-uniform from 4 KiB "
               "to 64 MiB, "
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
                "what one of those messages takes, publish, take and release, 6.9 MiB untouched on "
                "average"),
            Row("mem_arenas", values(r, "arenas"), "", "arenas of that publisher, at the end")]


def sets(bench):
    r = [bench.run("set", n=20 if bench.quick else 50) for _ in range(3 if bench.quick else 5)]
    what = "publish, take and build a set of 20,000 tensors that lie in shared memory"
    return [
        Row("statedict_20k_ms", values(r, "p50_ns", 1e-6), "ms", what, ("<=", 5)),
        Row("statedict_20k_first_ms", values(r, "first_ns", 1e-6), "ms",
            "likewise, the first set of a publisher", ("<=", 5)),
        Row("statedict_20k_arenas", values(r, "arenas_of_first"), "",
            "arenas that the first set takes",
            ("<=", 1)),
    ]


def lines(_):
    """What everything above has cost."""
    n = sum(path.read_bytes().count(b"\n") for folder in ("common", "client", "ring")
            for path in (SOURCE / folder).rglob("*.[ch]"))
    return [Row("lines", [n], "", "lines of C of common/, client/ and ring/", ("<=", 12_854))]


# In the order in which they are measured; what everything has cost comes last.
GROUPS = {
    "latency_busy": latency_busy,
    "former": former,
    "latency_block": latency_block,
    "rate": rate,
    "queue": queue,
    "first_call": first_call,
    "fanout": fanout,
    "frames": frames,
    **counted_rows.GROUPS,
    "copyin": copyin,
    "memory": memory,
    "sets": sets,
    **daemon_rows.GROUPS,
    "lines": lines,
}
