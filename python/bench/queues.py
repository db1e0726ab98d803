# SPDX-License-Identifier: Apache-2.0
"""Work queues of two producers and two workers, each a process: items a second of dlx,
torch.multiprocessing.Queue and multiprocessing.Queue, which carries arrays of NumPy.

Each item is new. Untouched ones are allocated, passed on and dropped; of filled ones every byte is
written where it will lie, as far as the queue allows it, and read where it was received.
"""

import multiprocessing
import time

import dlx
import numpy as np

SIZE, PRODUCERS, WORKERS, DEPTH = 6_000_000, 2, 2, 64


def read(array):
    return int(array.view(np.uint64).sum())


class DlxQueue:
    def __init__(self):
        self.topic = f"bench/queue/{time.monotonic_ns()}"

    def produce(self, n, filled, start, end):
        with dlx.connect() as c, c.publisher(self.topic, groups=["bench"], depth=DEPTH) as pub:
            start.wait()
            for i in range(n):
                x = pub.empty(SIZE, "uint8")
                if filled:
                    np.asarray(x)[:] = i % 256
                pub.publish(x, strict=True)
            pub.drain(60)
            end.wait()

    def work(self, filled, start):
        done = 0
        with (
            dlx.connect() as c,
            c.subscribe(
                self.topic, group="bench", publishers=PRODUCERS, timeout=60, max_held=2
            ) as sub,
        ):
            start.wait()
            for task in sub:
                with task:
                    if filled:
                        read(np.asarray(task))
                done += 1
                yield done


class MpQueue:
    """An array is pickled, and passes through a pipe."""

    def __init__(self):
        self.queue = self.context().Queue(DEPTH)

    @staticmethod
    def context():
        return multiprocessing.get_context("spawn")

    def make(self, value):
        x = np.empty(SIZE, np.uint8)
        if value is not None:
            x[:] = value
        return x

    array = staticmethod(lambda x: x)

    def produce(self, n, filled, start, end):
        start.wait()
        for i in range(n):
            self.queue.put(self.make(i % 256 if filled else None))
        end.wait()  # torch: what is in the queue lives as long as this process

    def work(self, filled, start):
        done = 0
        start.wait()
        while True:
            x = self.queue.get()
            if filled:
                read(self.array(x))
            del x
            done += 1
            yield done


class TorchMpQueue(MpQueue):
    """A tensor is moved to shared memory, or is filled there, as a DataLoader does."""

    @staticmethod
    def context():
        import torch.multiprocessing

        return torch.multiprocessing.get_context("spawn")

    def make(self, value):
        import torch

        if value is None:
            return torch.empty(SIZE, dtype=torch.uint8)
        storage = torch.UntypedStorage._new_shared(SIZE)
        return torch.empty(0, dtype=torch.uint8).set_(storage).fill_(value)

    array = staticmethod(lambda x: x.numpy())


def run_producer(queue, n, filled, start, end):
    queue.produce(n, filled, start, end)


def run_worker(queue, filled, start, taken, i):
    for done in queue.work(filled, start):
        taken[i] = done


def items_per_s(system, n, filled):
    """Of `n` items, a multiple of the producers, from when all processes are ready until the last
    one was worked on.
    """
    queue = system()
    context = multiprocessing.get_context("spawn")
    start, end = context.Barrier(PRODUCERS + WORKERS + 1), context.Event()
    taken = context.RawArray("q", WORKERS)
    processes = [
        context.Process(target=run_producer, args=(queue, n // PRODUCERS, filled, start, end))
        for _ in range(PRODUCERS)
    ] + [
        context.Process(target=run_worker, args=(queue, filled, start, taken, i))
        for i in range(WORKERS)
    ]
    for process in processes:
        process.start()
    start.wait(60)
    began = time.monotonic()
    while sum(taken) < n:
        if time.monotonic() > began + 120 or not all(p.exitcode in (None, 0) for p in processes):
            raise TimeoutError(f"{system.__name__}: {sum(taken)} of {n} items")
        time.sleep(0.001)
    rate = n / (time.monotonic() - began)
    end.set()
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()
    return rate


def compare(other, n_ours, n_theirs, filled, rounds):
    """Medians of items a second, of ours and the other's, which take turns."""
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(items_per_s(DlxQueue, n_ours, filled))
        theirs.append(items_per_s(other, n_theirs, filled))
    return sorted(ours)[rounds // 2], sorted(theirs)[rounds // 2]
