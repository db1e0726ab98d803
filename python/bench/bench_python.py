# SPDX-License-Identifier: Apache-2.0
"""dlx beside what Python programs use now, between two processes, on one machine: make bench-python
(QUICK=1: few rounds).

Blocking one-way latency: from just before the sender begins to send what lies ready until the
receiver, which slept, has an array or tensor. The data are sent as soon as the receiver has said
that it goes to sleep, and does; in the rows named paced 3 ms later, when the processor sleeps, too.
A system that is not installed keeps its row and the reason. The systems of a row take turns, so
that other work of the machine meets all of them.
"""

import argparse
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time

import dlx
import numpy as np
import queues
import served
from systems import (
    FRAME,
    Dlx,
    DlxSmall,
    Iceoryx2,
    ShmPipe,
    TorchQueue,
    TorchShared,
    Zenoh,
    Zmq,
    now,
)

PAUSE_S = 0.003


# -- one-way latency -------------------------------------------------------------------------------


def receiver(system, args, n, pipe):
    taken = []

    def acknowledge(ns, array):
        assert int(array[-1]) == len(taken) % 256 and len(array.shape) == 1
        taken.append(ns)
        pipe.send(None)
        if len(taken) < n:
            rise()

    def rise():
        pipe.recv()  # until the next one lies ready
        pipe.send(None)

    pipe.send(None)
    rise()
    system.receive(*args, n, acknowledge)
    pipe.send(taken)


def await_sleep(pid):
    deadline = time.monotonic() + 0.1
    with open(f"/proc/{pid}/stat", "rb", buffering=0) as f:
        while f.read(256).rpartition(b") ")[2][:1] != b"S" and time.monotonic() < deadline:
            f.seek(0)


class Run:
    def __init__(self, system, size, n, pause_s):
        self.pause_s = pause_s
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.system, self.payload = system(size, context), bytearray(size)
        self.process = context.Process(
            target=receiver, args=(system, self.system.args, n, theirs), daemon=True
        )
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def once(self, i):
        self.payload[-1] = i % 256
        self.system.prepare(self.payload)
        self.pipe.send(None)
        self.pipe.recv()
        if i == 0:
            self.system.begin()
        await_sleep(self.process.pid)
        if self.pause_s:
            time.sleep(self.pause_s)
        self.system.send(self.payload)
        if not self.pipe.poll(50):
            raise TimeoutError(
                f"{type(self.system).__name__}: message {i} did not arrive within 50 s"
            )
        self.pipe.recv()

    def end(self):
        taken = self.pipe.recv()
        self.process.join()
        getattr(self.system, "end", lambda: None)()
        return statistics.median(taken[len(taken) // 10 :]) / 1000


def one_way(systems, size, n, pause_s=0):
    """Medians in us, of systems that take turns."""
    runs = [Run(x, size, n, pause_s) for x in systems]
    for i in range(n):
        for run in runs:
            run.once(i)
    return [run.end() for run in runs]


# -- the other rows --------------------------------------------------------------------------------


def overhead(n):
    """us of publish, take, from_dlpack and release in one process."""
    make = np.from_dlpack if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else np.asarray
    best = float("inf")
    with (
        dlx.connect() as c,
        c.publisher("bench/overhead") as pub,
        c.subscribe("bench/overhead") as sub,
    ):
        # short, for some to be undisturbed on a machine that does other things
        x, batch = (pub.zeros(256, "uint8"), 500)
        for _ in range(5 * n // batch):
            start = now()
            for _ in range(batch):
                pub.publish(x, share=True)
                msg = sub.take(0)
                array = make(msg)
                del msg, array
            best = min(best, (now() - start) / batch / 1000)
    return best


def state_dict_receiver(queue, pipe, rounds):
    import torch

    with dlx.connect() as c, c.subscribe("bench/state", timeout=60) as sub:
        pipe.send(None)
        for _ in range(rounds):
            msg = sub.take()
            tensors = {k: torch.from_dlpack(t) for k, t in msg.items()}
            end = now()
            assert int(tensors["t999"][0]) == 9
            pipe.send(end - msg.monotonic_ns)
            del msg, tensors
        for _ in range(rounds):
            start, tensors = queue.get()
            end = now()
            assert int(tensors["t999"][0]) == 9
            pipe.send(end - start)
            del tensors


def state_dict(total, rounds):
    """ms to publish and attach 1,000 tensors that lie in shared memory already: ours, torch's."""
    import torch
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    queue, (ours, theirs) = context.Queue(), context.Pipe()
    process = context.Process(target=state_dict_receiver, args=(queue, theirs, rounds))
    process.start()
    ours.recv()
    like = {f"t{i}": np.empty(total // 1000, np.uint8) for i in range(1000)}
    result = []
    with dlx.connect() as c, c.publisher("bench/state", history=1) as pub:
        pub.wait(1, 60)
        x = pub.empty_like(like)
        for t in x.values():
            np.asarray(t)[:] = 9
        for _ in range(rounds):
            pub.publish(x, share=True, strict=True, monotonic_ns=now())
            result.append(ours.recv() / 1e6)
    tensors = {k: torch.full((total // 1000,), 9, dtype=torch.uint8).share_memory_() for k in like}
    for _ in range(rounds):
        queue.put((now(), tensors))
        result.append(ours.recv() / 1e6)
    process.join()
    return statistics.median(result[:rounds]), statistics.median(result[rounds:])


def ray_latency(frame, n, pause_s=0):
    """us of put and of get in an actor."""
    import ray

    folder = tempfile.mkdtemp(prefix="dlx-bench.")
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _temp_dir=folder,
    )
    try:

        @ray.remote
        class Taker:
            def take(self, references, start):
                array = ray.get(references[0])
                return time.monotonic_ns() - start if array[-1] == 7 else None

        taker, payload, taken = Taker.remote(), np.full(frame, 7, np.uint8), []
        for _ in range(n):
            time.sleep(pause_s)
            start = now()
            taken.append(ray.get(taker.take.remote([ray.put(payload)], start)))
        return statistics.median(taken[n // 10 :]) / 1000
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


# -- rows ------------------------------------------------------------------------------------------


def ratio(name, bar, other, needs, size, n, ours=Dlx, pause_s=0):
    def measure():
        a, b = one_way([ours, other], size, n, pause_s)
        return {"value": a / b, "ours_us": a, "theirs_us": b}

    return name, bar, needs, measure


def both_paces(case, bar, other, needs, size, n, ours=Dlx):
    """The row, and without a bar what it is when the processor sleeps, too: of its time to wake
    both have the same.
    """
    first, _, peer = case.partition("_vs_")
    return [
        ratio(case, bar, other, needs, size, n, ours),
        ratio(f"{first}_paced_vs_{peer}", None, other, needs, size, n // 2, ours, PAUSE_S),
    ]


def queue_row(name, bar, other, needs, filled, n_ours, n_theirs, rounds):
    """6 MB tensors through a queue of two producers and two workers: the other's items a second
    divided by ours.
    """

    def measure():
        ours, theirs = queues.compare(other, n_ours, n_theirs, filled, rounds)
        return {"value": theirs / ours, "ours_per_s": ours, "theirs_per_s": theirs}

    return name, bar, needs, measure


def queue_rows(quick):
    rounds, n = (1, 200) if quick else (5, 1000)
    torch, mp = (queues.TorchMpQueue, "torch"), (queues.MpQueue, "multiprocessing")
    return [
        queue_row("py_queue_vs_torch_mp", 0.1, *torch, False, 20 * n, n, rounds),
        queue_row("py_queue_vs_mp", 0.125, *mp, False, 20 * n, n, rounds),
        queue_row("py_queue_filled_vs_torch_mp", 0.1, *torch, True, n, n, rounds),
        queue_row("py_queue_filled_vs_mp", 0.125, *mp, True, n, n, rounds),
    ]


def ray_objects_row(rounds):
    def measure():
        import ray_objects

        ms = ray_objects.compare(rounds)
        return {"value": ms["ours"] / ms["theirs"], **{f"{k}_ms": v for k, v in ms.items()}}

    return "py_ray_64MiB_vs_store", 0.1, "ray", measure


def torch_rows(quick):
    """Those of dlx.contrib.torch and dlx.weights, which need PyTorch to be imported."""
    try:
        import torch_rows
    except ImportError as e:
        reason = str(e)

        def skip():
            raise ImportError(reason)

        return [("py_torch", None, "numpy", skip)]
    return torch_rows.rows(quick)


def rows(quick):
    n, frame = (60, int(np.prod(FRAME))) if quick else (400, int(np.prod(FRAME)))
    total = 100_000_000 if quick else 1_000_000_000

    def state():
        a, b = state_dict(total, 3 if quick else 7)
        return {"value": a / b, "ours_ms": a, "theirs_ms": b, "bytes": total}

    def ray_row():
        (a,), b = one_way([Dlx], frame, n), ray_latency(frame, n)
        return {"value": a / b, "ours_us": a, "theirs_us": b}

    return [
        ("py_overhead_us", 1.2, "numpy", lambda: {"value": overhead(5000 if quick else 50000)}),
        *both_paces("py_1080p_vs_torch_mp", 0.02, TorchQueue, "torch", frame, n),
        *both_paces("py_1080p_vs_torch_shared", 0.15, TorchShared, "torch", frame, n),
        *both_paces("py_1080p_vs_shm_pipe", 0.35, ShmPipe, "multiprocessing", frame, n),
        ("py_1080p_vs_ray", 0.01, "ray", ray_row),
        ray_objects_row(5 if quick else 20),
        *both_paces("py_1080p_vs_iceoryx2", 0.5, Iceoryx2, "iceoryx2", frame, n),
        *both_paces("py_1080p_vs_zenoh", 0.5, Zenoh, "zenoh", frame, n),
        *both_paces("py_1KiB_vs_zmq", 0.7, Zmq, "zmq", 1024, n * 5, DlxSmall),
        ("py_statedict", 0.02, "torch", state),
        *queue_rows(quick),
        *torch_rows(quick),
    ]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--json", required=True)
    p.add_argument("--quick", action="store_true")
    p.add_argument("--only", default="")
    o = p.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))
    out = {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "cpus": os.cpu_count(),
        "quick": o.quick,
        "rows": [],
    }
    with served.daemon() as path:
        os.environ["DLX_SOCKET"] = path
        for name, bar, needs, measure in rows(o.quick):
            if name not in o.only.split(",") if o.only else o.quick and bar is None:
                continue
            row = {"name": name, "bar": bar}
            try:
                importlib.import_module(needs)
                row.update(measure())
                if bar is not None:
                    row["passed"] = row["value"] <= bar
            except ImportError as e:
                row["skipped"] = str(e)
            except Exception as e:  # a peer that does not start costs its row
                row["failed"] = f"{type(e).__name__}: {e}"
            out["rows"].append(row)
            rest = {
                k: round(v, 3)
                for k, v in row.items()
                if k not in ("name", "bar", "value") and not isinstance(v, (bool, str))
            }
            if "value" in row:
                print(
                    f"{name:<30} {row['value']:8.4f}  {'' if bar is None else f'bar {bar}':<9} "
                    f" {rest}",
                    flush=True,
                )
            else:
                print(
                    f"{name:<30} "
                    + (
                        f"SKIP: {row['skipped']}"
                        if "skipped" in row
                        else f"FAILED: {row['failed']}"
                    ),
                    flush=True,
                )
    with open(o.json, "w", encoding="utf-8") as f:
        json.dump(out, f, indent=1)
    if any("failed" in row for row in out["rows"]):
        sys.exit("some rows could not be measured")


if __name__ == "__main__":
    main()
