# SPDX-License-Identifier: Apache-2.0
"""What the groups of rows share: sizes, rounds, what is made of results, and streams of frames."""

import time

SIZES = {"64B": 64, "4KiB": 4 << 10, "1MiB": 1 << 20, "64MiB": 64 << 20}


DEPTH, BATCH = 256, 32  # of the rows that say so; the peers of peer_rows have queues of 256, too


def values(results, key, scale=1.0):
    return [r[key] * scale for r in results]


def ratios(results, others, key="p50_ns"):
    return [a[key] / b[key] for a, b in zip(results, others)]


def rounds(bench):
    return 5 if bench.quick else 9


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
