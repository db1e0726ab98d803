#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""N engines use one copy of a model's weights, and swap it for a newer one while they serve.

    engines.py [--device cpu] [--engines 3] [--versions 5] [--mib 24] [--requests 20]

A loader publishes each version of the weights as one set, retained. Each engine is a process: one
thread takes the newest set and replaces the engine's weights by it, with one assignment, while
another thread serves. A request uses the weights that were there when it began, to its end; when
the last one that uses a version has ended, its memory goes back to the loader, for the version
after the next one. In the end the loader leaves, and one more engine starts: it attaches what was
retained.

Each version of the model gives an answer of its own, and layers of two versions give none of these:
each engine checks all of its answers. Needs NumPy on the CPU, and PyTorch with --device cuda:0.
"""

import argparse
import json
import re
import subprocess
import sys
import threading

import dlx
import numpy as np

TOPIC = "weights/engines"
LAYERS = [f"layer{i}.weight" for i in range(6)]


# ---- the model: each layer permutes its input, and scales it by a number of its version ----


def scale(version):
    return 1 + version % 9


def model(version, n):
    """The weights of the engine by name."""
    layer = np.roll(np.eye(n, dtype=np.float32), 1, axis=1) * scale(version)
    return {name: layer for name in LAYERS}


def run(weights, x):
    for name in LAYERS:
        x = x @ weights[name]
    return x


def is_answer(y, x, version):
    return np.array_equal(y, np.roll(x, len(LAYERS)) * scale(version) ** len(LAYERS))


# ---- where the weights are ----


class Cpu:
    stream = None
    attach = staticmethod(np.asarray)  # a view: nothing is copied

    def __init__(self, device):
        pass

    def fill(self, tensor, values):
        np.asarray(tensor)[:] = values

    def to_device(self, x):
        return x

    def to_host(self, y):
        return y

    def memory(self, weights):
        """Bytes that are this process's alone, and bytes of shared memory that it uses."""
        with open("/proc/self/smaps", encoding="ascii", errors="replace") as f:
            maps = re.split(r"^(?=[0-9a-f]+-)", f.read(), flags=re.M)
        shared = [m for m in maps if "dlx-arena" in m.split("\n")[0]]

        def kib(of, field):
            return sum(int(k) for m in of for k in re.findall(rf"^{field}: *(\d+) kB", m, re.M))

        own = [m for m in maps if m not in shared]
        return kib(own, "Private_(?:Clean|Dirty)") << 10, kib(shared, "Rss") << 10


class Gpu:
    def __init__(self, device):
        import torch

        self.torch, self.device, self.attach = torch, device, torch.from_dlpack
        self.stream = torch.cuda.current_stream(device)

    def fill(self, tensor, values):
        self.torch.from_dlpack(tensor).copy_(self.torch.from_numpy(values))

    def to_device(self, x):
        return self.torch.from_numpy(x).to(self.device)

    def to_host(self, y):
        return y.cpu().numpy()

    def memory(self, weights):
        return (
            self.torch.cuda.memory_reserved(self.device),
            sum(w.numel() * w.element_size() for w in weights.values()),
        )


def library(device):
    return (Cpu if device == "cpu" else Gpu)(device)


# ---- an engine ----


class Engine:
    def __init__(self, args):
        self.lib, self.n_report = library(args.device), args.requests
        self.current = None  # (version, weights): replaced as a whole
        self.is_loaded, self.is_over = threading.Event(), threading.Event()

    def watch(self):
        """Take the newest weights until the loader has left."""
        with dlx.connect(timeout=60) as c, c.subscribe(TOPIC, latest=True, timeout=60) as s:
            for msg in s:
                weights = {name: self.lib.attach(t) for name, t in msg.items()}
                self.current = msg.meta["version"], weights
                self.is_loaded.set()
                del msg, weights  # the memory stays as long as the weights of a version do

    def serve_one(self, x):
        version, weights = self.current
        y = self.lib.to_host(run(weights, self.lib.to_device(x)))
        return version, is_answer(y, x, version)

    def report(self, **what):
        own, shared = self.lib.memory(self.current[1])
        print(json.dumps({**what, "own": own, "shared": shared}), flush=True)

    def serve(self):
        """Serve requests, and tell when enough of a version were served."""
        self.is_loaded.wait()
        if not self.current:
            return
        x = np.arange(len(self.current[1][LAYERS[0]]), dtype=np.float32) % 10
        served, n, n_wrong, told = {}, 0, 0, None
        while not self.is_over.is_set() or told != self.current[0]:
            version, is_right = self.serve_one(x)
            served[version] = served.get(version, 0) + 1
            n, n_wrong = n + 1, n_wrong + (not is_right)
            if version != told and served[version] >= self.n_report:
                self.report(version=version, served=n, wrong=n_wrong)
                told = version
        self.report(version=told, served=n, wrong=n_wrong)


def engine(args):
    e = Engine(args)
    server = threading.Thread(target=e.serve)
    server.start()
    try:
        e.watch()
    finally:
        e.is_over.set()
        e.is_loaded.set()
        server.join()


# ---- the loader ----


def publish(pub, lib, version, args):
    values = model(version, int((args.mib * (1 << 20) / 4 / len(LAYERS)) ** 0.5))
    weights = pub.empty_like(values, device=args.device)
    for name, tensor in weights.items():
        lib.fill(tensor, values[name])
    n_bytes = sum(t.nbytes for t in weights.values())
    pub.publish(weights, meta={"version": version}, stream=lib.stream, strict=True)
    return n_bytes


def mib(n_bytes):
    return f"{n_bytes / (1 << 20):.1f} MiB"


def hear(engines, version, first=0):
    """The answer of each engine once it has served enough requests with this version."""
    lines = [process.stdout.readline() for process in engines]
    if "" in lines:
        sys.exit(f"engine {lines.index('')} has ended")
    said = [json.loads(line) for line in lines]
    for i, e in enumerate(said, first):
        print(
            f"engine {i}: version {e['version']}, {e['served']} requests served, "
            f"{e['wrong']} with mixed weights; memory: {mib(e['own'])} of its own, "
            f"{mib(e['shared'])} shared",
            flush=True,
        )
    if any(e["version"] != version or e["wrong"] for e in said):
        sys.exit("an engine served what it should not have")
    return sum(e["served"] for e in said)


def main(args):
    command = [
        sys.executable,
        __file__,
        "--engine",
        "--device",
        args.device,
        "--requests",
        str(args.requests),
    ]

    def start():
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    lib = library(args.device)
    with dlx.connect(timeout=60) as c:  # the engines may have all processors
        with c.publisher(TOPIC, retain=1) as pub:
            engines = [start() for _ in range(args.engines)]
            for version in range(1, args.versions + 1):
                n_bytes = publish(pub, lib, version, args)
                hear(engines, version)
            stats = pub.stats()
        n = hear(engines, args.versions)
        arenas = stats["arena_bytes" if args.device == "cpu" else "gpu_arena_bytes"]
        print(
            f"{args.engines} engines served {n} requests with {args.versions} versions; "
            f"{args.versions} versions of {mib(n_bytes)} were in {mib(arenas)}"
        )
        print("the loader has left, and one more engine starts:")
        engines.append(start())
        hear(engines[-1:], args.versions, first=args.engines)
        ends = [process.communicate() and process.returncode for process in engines]
        c.drop_retained(TOPIC)
    if any(ends) or arenas > 3 * n_bytes:
        sys.exit(f"engines ended with {ends}; {arenas} bytes of memory")


def parse():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--device", default="cpu", help="of the weights: cpu, or cuda:0 (cpu)")
    p.add_argument("--engines", type=int, default=3, help="how many processes serve (3)")
    p.add_argument("--versions", type=int, default=5, help="how many the loader publishes (5)")
    p.add_argument("--mib", type=int, default=24, help="size of a version (24)")
    p.add_argument(
        "--requests",
        type=int,
        default=20,
        help="that each engine serves before the next version comes (20)",
    )
    p.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


if __name__ == "__main__":
    arguments = parse()
    if arguments.engine:
        engine(arguments)
    else:
        main(arguments)
