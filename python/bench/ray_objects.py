# SPDX-License-Identifier: Apache-2.0
"""A tensor of 64 MiB from one actor of Ray to another on the same machine: made, filled, passed on
and read, as the process that calls the two sees it. Ray's object store, with and without its switch
RAY_ENABLE_ZERO_COPY_TORCH_TENSORS, and the transport of dlx.contrib.ray take turns.
"""

import shutil
import statistics
import tempfile
import time

import dlx.contrib.ray
import ray
import torch

N = (64 << 20) // 4  # float32
SWITCH = {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}


def actors():
    """The two classes, when Ray knows the transport."""

    class Maker:
        def make(self, value):
            return torch.empty(N).fill_(value)

        @ray.method(tensor_transport="dlx")
        def make_ordinary(self, value):
            return torch.empty(N).fill_(value)

        @ray.method(tensor_transport="dlx")
        def make_in_place(self, value):
            return dlx.contrib.ray.empty(N, torch.float32).fill_(value)

    class Reader:
        def read(self, x):
            return x.max().item()

    return Maker, Reader


def compare(rounds):
    """Medians in ms, by way."""
    folder = tempfile.mkdtemp(prefix="dlx-bench.")
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        _temp_dir=folder,
    )
    try:
        dlx.contrib.ray.register(torch.Tensor)
        maker, reader = (
            ray.remote(enable_tensor_transport=True)(actor).remote() for actor in actors()
        )
        fast_maker, fast_reader = (
            ray.remote(enable_tensor_transport=True)(actor)
            .options(runtime_env={"env_vars": SWITCH})
            .remote()
            for actor in actors()
        )
        ways = {
            "ours": (maker.make_in_place, reader),
            "ordinary": (maker.make_ordinary, reader),
            "theirs": (maker.make, reader),
            "theirs_zero_copy": (fast_maker.make, fast_reader),
        }
        taken = {way: [] for way in ways}
        for i in range(rounds + 2):  # the first ones start processes and allocate memory
            for way, (make, to) in ways.items():
                start = time.monotonic_ns()
                assert ray.get(to.read.remote(make.remote(i))) == i
                taken[way].append((time.monotonic_ns() - start) / 1e6)
        return {way: statistics.median(times[2:]) for way, times in taken.items()}
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
