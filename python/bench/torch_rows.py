# SPDX-License-Identifier: Apache-2.0
"""dlx.contrib.torch beside what PyTorch has, batches for a trainer and a queue; and dlx.weights.

Every byte is written before it is passed on, and read where it was received, by one thread of each
process. The systems of a row take turns. Rows named read_only are those of private=False.
"""

import itertools
import multiprocessing
import os
import re
import statistics
import tempfile
import time

import dlx
import queues
import torch
import torch.multiprocessing
from dlx import weights
from dlx.contrib.torch import Batches, Queue, publish_batches
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BATCH, LOADERS = (8, 1080, 1920, 3), 2
DEPTH = 8  # of a queue
PROCESSES = 4
os.environ["OMP_NUM_THREADS"] = "1"  # of processes that are started here
torch.set_num_threads(1)


def read(t):
    return int(t.view(-1).view(torch.int64).sum())


# -- batches ---------------------------------------------------------------------------------------


class Made(IterableDataset):
    """Batches that a worker makes, n from all of them."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        info = get_worker_info()
        for i in range(self.n // (info.num_workers if info else 1)):
            yield torch.full(BATCH, i % 256, dtype=torch.uint8)


def load(topic, n, in_place):

    def batches(empty):
        for i in range(n):
            yield empty(BATCH, torch.uint8).fill_(i % 256)

    publish_batches(batches if in_place else Made(n), topic, timeout=60)


def batches_per_s(loader, n):
    """From the first batch to the last one."""
    came = []
    for batch in loader:
        read(batch)
        came.append(time.monotonic())
        del batch
    assert len(came) == n, (len(came), n)
    return (n - 1) / (came[-1] - came[0])


def ours_per_s(n, in_place, private):
    context = multiprocessing.get_context("spawn")
    topic = f"bench/batches/{time.monotonic_ns()}"
    loaders = [
        context.Process(target=load, args=(f"{topic}/{i}", n // LOADERS, in_place))
        for i in range(LOADERS)
    ]
    for loader in loaders:
        loader.start()
    ds = Batches(f"{topic}/*", loaders=LOADERS, timeout=60, private=private)
    try:
        return batches_per_s(DataLoader(ds, batch_size=None), n)
    finally:
        for loader in loaders:
            loader.join(60)


def theirs_per_s(n):
    loader = DataLoader(
        Made(n), batch_size=None, num_workers=LOADERS, multiprocessing_context="spawn"
    )
    return batches_per_s(loader, n)


def batches(in_place, private, n, rounds):
    rates = {"ours": [], "theirs": []}
    for _ in range(rounds):
        rates["ours"].append(ours_per_s(n, in_place, private))
        rates["theirs"].append(theirs_per_s(n))
    per_s = {f"{key}_per_s": statistics.median(each) for key, each in rates.items()}
    return {"value": per_s["theirs_per_s"] / per_s["ours_per_s"], **per_s}


# -- a queue ---------------------------------------------------------------------------------------


class Theirs(queues.TorchMpQueue):
    def __init__(self):
        self.queue = self.context().Queue(DEPTH)

    def make(self, value):
        return torch.full((queues.SIZE,), value, dtype=torch.uint8)


class Ours(Theirs):
    private = True

    def __init__(self):
        self.queue = Queue(DEPTH, private=self.private)


class OursInPlace(Ours):
    def make(self, value):
        return self.queue.new_empty(queues.SIZE, torch.uint8).fill_(value)


class OursInPlaceReadOnly(OursInPlace):
    private = False


class NoQueue(Theirs):
    """What the memory allows: each worker fills tensors of its own, as many as may wait in a queue,
    and reads them.
    """

    def __init__(self):
        pass

    def produce(self, n, filled, start, end):
        start.wait()
        end.wait()

    def work(self, filled, start):
        tensors = [self.make(0) for _ in range(DEPTH)]
        start.wait()
        for done in itertools.count(1):
            tensors[done % DEPTH].fill_(done % 256)
            read(tensors[(done + DEPTH // 2) % DEPTH])
            yield done


def rate(ours, n, rounds):
    got = {"ours": [], "theirs": [], "memory": []}
    for _ in range(rounds):
        got["ours"].append(queues.items_per_s(ours, n, True))
        got["theirs"].append(queues.items_per_s(Theirs, n, True))
        got["memory"].append(queues.items_per_s(NoQueue, n, True))
    per_s = {f"{key}_per_s": statistics.median(each) for key, each in got.items()}
    return {"value": per_s["theirs_per_s"] / per_s["ours_per_s"], **per_s}


def echo(system, pipe):
    pipe.send(None)
    while (item := system.queue.get(timeout=60)) is not None:
        came, (start, t) = time.monotonic_ns(), item
        read(t)
        del t, item
        pipe.send((came - start, time.monotonic_ns() - start))


def latency(ours, n):
    """us from put() to the end of get(), of a process that sleeps; and until all was read."""
    context = multiprocessing.get_context("spawn")
    systems, runs = {"ours": ours(), "theirs": Theirs()}, {}
    for key, system in systems.items():
        here, there = context.Pipe()
        process = context.Process(target=echo, args=(system, there), daemon=True)
        process.start()
        here.recv()
        runs[key] = here, process, []
    for i in range(n):
        for key, system in systems.items():
            time.sleep(0.003)  # until the receiver sleeps
            t = system.make(i % 256)
            system.queue.put((time.monotonic_ns(), t))
            del t
            runs[key][2].append(runs[key][0].recv())
    result = {}
    for key, (_, process, took) in runs.items():
        systems[key].queue.put(None)
        process.join(60)
        for k, what in enumerate(("us", "read_us")):
            result[f"{key}_{what}"] = statistics.median(x[k] for x in took[n // 10 :]) / 1000
    return {"value": result["ours_us"] / result["theirs_us"], **result}


# -- weights ---------------------------------------------------------------------------------------


def memory(what):
    """Bytes of the proportional share of this process in the memory of publishers, or in all."""
    with open("/proc/self/smaps", encoding="ascii", errors="replace") as f:
        maps = re.split(r"^(?=[0-9a-f]+-)", f.read(), flags=re.M)
    return sum(
        int(re.search(r"^Pss: *(\d+) kB", m, re.M)[1]) * 1024
        for m in maps
        if m and what in m.split("\n")[0]
    )


def use(topic, pipe):
    start = time.monotonic()
    state = weights.attach(topic, timeout=60)
    took = time.monotonic() - start
    total = sum(int(t.view(torch.int32).sum()) for t in state.values())
    pipe.send((1000 * took, total))
    pipe.recv()
    pipe.send((memory("/memfd:dlx"), memory("")))
    pipe.recv()


def publish(folder, n_bytes, topic):
    from safetensors.torch import save_file

    path, n = os.path.join(folder, "model.safetensors"), 200
    save_file({f"w{i}": torch.full((n_bytes // n // 2,), i).bfloat16() for i in range(n)}, path)
    weights.publish(path, topic)


def shared_weights(n_bytes):
    topic, context = f"bench/weights/{time.monotonic_ns()}", multiprocessing.get_context("spawn")
    with dlx.connect() as c, tempfile.TemporaryDirectory(prefix="dlx-bench.") as folder:
        publisher = context.Process(target=publish, args=(folder, n_bytes, topic))
        publisher.start()
        publisher.join()
        runs = []
        for _ in range(PROCESSES):
            here, there = context.Pipe()
            process = context.Process(target=use, args=(topic, there), daemon=True)
            process.start()
            runs.append((here, process))
        took = [here.recv()[0] for here, _ in runs]
        for here, _ in runs:
            here.send(None)
        shares = [here.recv() for here, _ in runs]
        daemon = c.daemon()["pid"]
        with open(f"/proc/{daemon}/smaps_rollup", encoding="ascii") as f:
            of_daemon = int(re.search(r"^Pss: *(\d+) kB", f.read(), re.M)[1]) * 1024
        for here, process in runs:
            here.send(None)
            process.join(60)
        c.drop_retained(topic)
    of_weights = sum(share for share, _ in shares)
    return {
        "value": (of_weights + of_daemon) / n_bytes,
        "bytes": n_bytes,
        "all_of_processes_bytes": sum(share for _, share in shares),
        "daemon_bytes": of_daemon,
        "attach_ms_max": max(took),
        "attach_ms_median": statistics.median(took),
    }


def rows(quick):
    rounds, n, sent = (1, 20, 200) if quick else (5, 100, 500)
    size = 200_000_000 if quick else 2_000_000_000

    def ratios(name, bar, measure, *args):
        return name, bar, "torch", lambda: measure(*args)

    made = [
        ratios("py_batches_vs_loader", None, batches, False, True, n, rounds),
        ratios("py_batches_in_place_vs_loader", None, batches, True, True, n, rounds),
        ratios("py_batches_in_place_read_only_vs_loader", 1 / 3, batches, True, False, n, rounds),
        ratios("py_torch_queue_us", 0.1, latency, Ours, n),
        ratios("py_torch_queue_in_place_us", 0.05, latency, OursInPlace, n),
        ratios("py_torch_queue_rate", 0.25, rate, Ours, sent, rounds),
        ratios("py_torch_queue_in_place_rate", 0.125, rate, OursInPlace, sent, rounds),
        ratios(
            "py_torch_queue_in_place_read_only_rate", 0.125, rate, OursInPlaceReadOnly, sent, rounds
        ),
        ("py_weights_pss", 1.05, "safetensors", lambda: shared_weights(size)),
    ]
    quickly = ("py_batches_in_place_read_only_vs_loader", "py_torch_queue_in_place_us")
    return [row for row in made if not quick or row[0] in (*quickly, "py_weights_pss")]
