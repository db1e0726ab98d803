# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch whose memory is that of a publisher, which passes it on without a copy."""

import weakref
from collections.abc import Sequence

import torch

import dlx


class Memory:
    """Makes tensors in the memory of a publisher, and finds the dlx.Tensor of such a tensor."""

    def __init__(self, publisher: dlx.Publisher) -> None:
        self._publisher = publisher
        # By address of the storage. The weak reference removes the entry with the storage.
        self._tensors: dict[int, tuple[dlx.Tensor, weakref.ref[memoryview]]] = {}

    def empty(self, shape: int | Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Returns a tensor of PyTorch, not initialized, that is published without a copy."""
        x = self._publisher.empty(shape, dtype)
        if x.size == 0:
            return torch.empty(x.shape, dtype=dtype)
        try:
            memory = memoryview(x)
        except BufferError:  # bfloat16, float8
            memory = memoryview(x._as_bits())
        t = torch.frombuffer(memory, dtype=dtype).view(x.shape)
        address = t.untyped_storage().data_ptr()

        def forget(_: object) -> None:
            self._tensors.pop(address, None)

        # The storage of PyTorch holds `memory`, which lives as long as a tensor that uses it.
        self._tensors[address] = x, weakref.ref(memory, forget)
        return t

    def find(self, storage: torch.UntypedStorage) -> dlx.Tensor | None:
        """Returns the dlx.Tensor that has the memory of this storage; None: it is other memory."""
        entry = self._tensors.get(storage.data_ptr())
        return entry[0] if entry else None
