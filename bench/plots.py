# SPDX-License-Identifier: Apache-2.0
"""Curves: how cost grows with payload, subscribers, publishers, tensors a message and topics.
gnuplot draws them."""

import shutil
import subprocess

from daemon_rows import own_daemon
from harness import Failure, proc_kib

PEERS = {
    "dlx": "libdlx",
    "iceoryx2": "iceoryx2",
    "iceoryx": "iceoryx",
    "zmq": "ZeroMQ ipc",
    "socket": "Unix socket",
}
PAYLOADS = [4**k for k in range(3, 16)]  # 64 B to 1 GiB
PEER_PAYLOAD_MAX = 16 << 20  # what copies takes long above it
REPEATS = 3


class Plot:
    """Some curves: {name: [(x, y), ...]}."""

    def __init__(self, file, title, x, y, curves, log="xy", note=""):
        self.file, self.title, self.x, self.y = file, title, x, y
        self.curves, self.log, self.note = curves, log, note


def middle(values):
    return sorted(values)[len(values) // 2]


def best(bench, repeats, program, key, **options):
    """The median; None where it cannot be had."""
    try:
        return middle([bench.run(program, **options)[key] for _ in range(repeats)])
    except Failure:
        return None


def over_payload(bench, key, scale, warmup_bytes, **options):
    curves = {}
    free = proc_kib("meminfo", "MemAvailable") << 10
    for size in PAYLOADS:
        n = max(5, int(5e6 / (size * 0.2 + 300)))  # about as long for each size
        # Until each of them has met all of the memory that it goes round in: a ring of ours has
        # 1,024 messages then.
        most = warmup_bytes // size
        warmup = min(n // 10 + 1500, max(most, 6))
        for peer, name in PEERS.items():
            if (
                not bench.has_peer(peer)
                or (peer != "dlx" and size > PEER_PAYLOAD_MAX)
                or free < 14 * size
            ):
                continue
            repeats = REPEATS if size <= PEER_PAYLOAD_MAX else 1
            try:
                value = middle(
                    [
                        bench.peer(peer, size=size, touch=-1, n=n, warmup=warmup, **options)[key]
                        for _ in range(repeats)
                    ]
                )
            except Failure:
                continue
            if value:
                curves.setdefault(name, []).append((size, value * scale))
    return curves


def topics(bench):
    rss, attach = [], []
    for n in (1, 10, 100, 1000, 5000, 10_000):
        try:
            with own_daemon(bench) as daemon:
                options = {"topics": n, "links": min(n, 1000), "socket": daemon.socket}
                with bench.holding("topics", **options):
                    rss.append((n, daemon.rss_mib()))
                    attach.append(
                        (n, bench.run("attach", n=200, socket=daemon.socket)["p50_ns"] / 1e3)
                    )
        except Failure:
            break  # too few file descriptors
    return {"resident memory of the daemon, MiB": rss, "connect and subscribe, p50, us": attach}


def over(bench, xs, scale, program, option, **options):
    points = ((x, best(bench, REPEATS, program, "p50_ns", **{option: x}, **options)) for x in xs)
    return [(x, y * scale) for x, y in points if y]


def plots(bench):
    yield Plot(
        "latency",
        "One way, busy, every byte written and read",
        "payload, bytes",
        "p50, us",
        over_payload(bench, "p50_ns", 1e-3, 128 << 20, what="latency"),
    )
    yield Plot(
        "throughput",
        "One to one, all delivered, every byte written and read",
        "payload, bytes",
        "GB/s",
        over_payload(bench, "gb_per_s", 1, 512 << 20, what="rate"),
    )
    counts = (1, 2, 4, 8, 16, 32, 64)
    yield Plot(
        "fanout",
        "alloc and publish of 64 B",
        "subscribers attached",
        "p50, ns",
        {
            "which take nothing": over(bench, counts, 1, "fanout", "subscribers", n=4000, active=0),
            "which take all the time": over(
                bench, counts, 1, "fanout", "subscribers", n=4000, active=1
            ),
        },
        "x",
    )
    yield Plot(
        "publishers",
        "alloc, publish and take of 64 B in one process",
        "publishers of the topic, in turn",
        "p50, ns",
        {"libdlx": over(bench, counts, 1, "publishers", "publishers", n=2000)},
        "x",
    )
    yield Plot(
        "tensors",
        "Publish, take and build a set",
        "tensors a message",
        "p50, us",
        {
            "libdlx": over(
                bench, (1, 8, 64, 512, 4096, 32768, 65535), 1e-3, "set", "tensors", n=15, warmup=4
            )
        },
    )
    yield Plot(
        "topics",
        "A daemon with topics, and as many links (1,000 at most)",
        "topics",
        "",
        topics(bench),
    )
    gaps = (1_000, 3_000, 10_000, 15_000, 30_000, 100_000, 1_000_000)
    curves = {
        name: over(
            bench,
            gaps,
            1e-3,
            "peers/dlx",
            "gap",
            what="cold",
            mode="block",
            stream=0,
            n=400,
            warmup=50,
            spin=spin,
        )
        for name, spin in (
            ("never spins", -1),
            ("default: 20 us, adaptive", 0),
            ("spins for ever", -2),
        )
    }
    yield Plot(
        "spin",
        "One way, 64 B, by what dlx_take() does before it sleeps",
        "time since the last message, ns",
        "p50, us",
        curves,
    )


def text(value):
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def draw(plot, folder, caption):
    """<folder>/<file>.svg"""
    blocks = [(name, points) for name, points in plot.curves.items() if points]
    lines = [
        "set terminal svg size 720,440 dynamic background rgb 'white' font 'sans-serif,13'",
        f"set title {text(plot.title)} noenhanced",
        f"set xlabel {text(plot.x)[:-1]}\\n{text(caption)[1:]} noenhanced",
        f"set ylabel {text(plot.y)}",
        "set grid lc rgb '#dddddd'",
        "set key outside top center horizontal noenhanced",
        "set autoscale xfix",
        "set border 3",
        "set tics nomirror",
        *(f"set logscale {axis}" for axis in plot.log),
        "set format x '%.0s%c'" if plot.x.startswith(("payload", "time")) else "",
        "set yrange [0:*]" if "y" not in plot.log else "",
    ]
    for i, (_, points) in enumerate(blocks):
        lines += [f"$d{i} << EOD", *(f"{x} {y:.6g}" for x, y in points), "EOD"]
    style = "with linespoints lw 2 pt 7 ps 0.5"
    curves = (f"$d{i} {style} title {text(name)}" for i, (name, _) in enumerate(blocks))
    lines.append("plot " + ", ".join(curves))
    svg = subprocess.run(
        ["gnuplot"], input="\n".join(lines), text=True, check=True, stdout=subprocess.PIPE
    ).stdout
    tidy = "".join(line.rstrip() + "\n" for line in svg.splitlines())
    (folder / f"{plot.file}.svg").write_text(tidy, encoding="utf-8")


def draw_all(bench, source, caption):
    """The names of the files that were drawn."""
    if not shutil.which("gnuplot"):
        raise Failure("gnuplot is not installed")
    folder = source / "docs" / "plots"
    folder.mkdir(exist_ok=True)
    drawn = []
    for plot in plots(bench):
        if any(plot.curves.values()):
            draw(plot, folder, caption)
            drawn.append(plot.file)
            print(f"  docs/plots/{plot.file}.svg", flush=True)
    return drawn
