# SPDX-License-Identifier: Apache-2.0
"""Rows about the daemon: joins; its memory and its loop with many topics, patterns and retained
messages; restarts."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time

from harness import Daemon, Failure, Row, proc_kib
from row_tools import ratios, rounds, values


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
            out.append(
                Row(
                    f"attach_{key}_us{suffix}",
                    values(r, f"{key}_ns", 1e-3),
                    "us",
                    f"{meaning}, {key}",
                    bar if key == "p99" else None,
                )
            )
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
    return [
        Row(
            "daemon_rss_idle_mib",
            [idle],
            "MiB",
            "resident memory of a daemon without clients",
            ("<=", 5),
        )
    ]


TOPICS, TOPICS_LESS, TOPIC_LINKS = 10_000, 5_000, 1_000


def topics(bench):
    """With 10,000 topics, or 5,000 where the daemon may not have enough file descriptors."""
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
    info = subprocess.run(
        [str(bench.build / "dlxctl"), "info", "--json"],
        check=True,
        capture_output=True,
        env=dict(os.environ, DLX_SOCKET=daemon.socket),
    )
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
        Row(
            f"daemon_rss_{k}_topics_mib",
            [rss],
            "MiB",
            f"resident memory of the daemon, {there}",
            ("<=", 64) if full else None,
        ),
        Row(
            "topic_shared_kib",
            [held["shared_bytes_a_topic"] / 1024],
            "KiB",
            "shared memory of such a topic: control block and arena",
        ),
        Row(
            f"attach_{k}_p99_us",
            values(r, "p99_ns", 1e-3),
            "us",
            f"connect and subscribe to a live topic, {there}, p99",
            ("<=", 1000) if full else None,
        ),
        Row(f"attach_{k}_p50_us", values(r, "p50_ns", 1e-3), "us", "likewise, p50"),
        Row(
            f"daemon_turn_{k}_ms",
            [turn],
            "ms",
            f"longest turn of the daemon's loop in CPU time, {there}, and their end",
            ("<=", 5),
        ),
        Row(
            f"announce_{k}_p99_us", [held["p99_ns"] / 1e3], "us", f"dlx_publisher_new, {there}, p99"
        ),
        Row(f"announce_{k}_p50_us", [held["p50_ns"] / 1e3], "us", "likewise, p50"),
        Row(
            f"announce_{k}_all_ms",
            [held["all_ns"] / 1e6],
            "ms",
            "all of these topics, announced by several processes at once, with their messages",
        ),
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
            {
                name: lambda o=options: bench.run("pattern", n=n, socket=daemon.socket, **o)
                for name, options in contestants.items()
            },
            3 if bench.quick else 5,
        )
    return [
        Row(
            "pattern_4k_take",
            ratios(r["4k"], r["1"]),
            "",
            f"{what}, one of which publishes / one topic matches",
            ("<=", 1.2),
        ),
        Row(
            "pattern_4k_take_all",
            ratios(r["4k_all"], r["1"]),
            "",
            f"{what}, all publish in turn / one topic matches: what a take touches is not cached",
        ),
        Row(
            "pattern_1_take_ns",
            values(r["1"], "p50_ns"),
            "ns",
            "a take and its release, one topic matches, p50",
        ),
        Row(
            "pattern_4k_take_ns",
            values(r["4k"], "p50_ns"),
            "ns",
            f"likewise, {PATTERN_TOPICS:,} match, one publishes",
        ),
        Row(
            "pattern_4k_take_all_ns",
            values(r["4k_all"], "p50_ns"),
            "ns",
            "likewise, all publish in turn",
        ),
    ]


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
        Row(
            f"retained_{name}_attach_ms",
            values(r, "ns", 1e-6),
            "ms",
            f"connect, get {what}, find one, read a byte of it; its publisher has ended",
            ("<=", 10),
        ),
        Row(f"retained_{name}_get_ms", values(r, "get_ns", 1e-6), "ms", "of that dlx_get"),
        Row(
            "retained_memory_ratio",
            ratios_,
            "",
            "shared memory, and own memory of subscriber and daemon / payload",
        ),
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
        Row(
            "restart_pause_ms",
            values(r, "pause_ns", 1e-6),
            "ms",
            "the longest time between two of its messages",
        ),
    ]


GROUPS = {
    "attach": attach,
    "topics": topics,
    "pattern": pattern,
    "retained": retained,
    "restart": restart,
    "daemon": daemon_memory,
}
