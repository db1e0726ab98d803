#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers of torch.utils.data hand batches over through shared memory that is made once, instead of
a file a tensor.

    loader.py [fork|spawn]

Each worker connects for itself (a forked one has no part in its parent's connection), makes batches
in shared memory and publishes them; what it gives to PyTorch is only the number of the batch. The
main process takes them, in any order; its subscription hears of the workers when it takes, and
begins with what they published before (`history`).
"""

import os
import sys

import dlx
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

TOPIC = "batches"
N_WORKERS, N_BATCHES, SHAPE = 2, 10, (8, 3, 64, 64)


class Batches(IterableDataset):
    """Yields (worker, number) of batches that it has published."""

    def __iter__(self):
        worker = get_worker_info().id
        with (
            dlx.connect() as c,
            c.publisher(f"{TOPIC}/{worker}", on_full="block", history=8) as pub,
        ):
            for i in range(N_BATCHES):
                x = pub.empty(SHAPE, "float32")
                np.asarray(x)[:] = 100 * worker + i  # decode and augment here
                report = pub.publish(x, meta={"worker": worker, "batch": i}, timeout=60)
                assert not report.copied
                yield worker, i


def main(method):
    given, taken = [], []
    with dlx.connect() as c, c.subscribe(f"{TOPIC}/*", reliable=True, history=8, timeout=60) as sub:
        loader = DataLoader(
            Batches(), batch_size=None, num_workers=N_WORKERS, multiprocessing_context=method
        )
        for number in loader:
            given.append(tuple(number))
            msg = sub.take()  # of whichever worker
            batch = torch.from_dlpack(msg)
            worker, i = msg.meta["worker"], msg.meta["batch"]
            assert batch.shape == SHAPE and float(batch.mean()) == 100 * worker + i
            taken.append((worker, i))
        assert sorted(given) == sorted(taken) and len(taken) == N_WORKERS * N_BATCHES
    print(
        f"{method}: {len(taken)} batches of {int(np.prod(SHAPE)) * 4} bytes from {N_WORKERS} "
        f"workers of process {os.getpid()}"
    )


if __name__ == "__main__":
    main((sys.argv[1:] or ["fork"])[0])
