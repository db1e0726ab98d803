# SPDX-License-Identifier: Apache-2.0
"""Items of a queue as a pickle and the memory of tensors, and back."""

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # tells ForkingPickler about tensors that are not handled here

_ALIGNMENT = 64  # of where the sent part of a storage begins
_TENSORS = {torch.Tensor, torch.nn.Parameter}  # subclasses carry more than a view of a storage
_STORAGES = (torch.UntypedStorage, torch.storage.TypedStorage)


class _Part:
    """The part of a storage that the tensors of an item use, in bytes."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage, self.first, self.end = storage, storage.nbytes(), 0

    def add(self, first: int, end: int) -> None:
        self.first, self.end = min(self.first, first), max(self.end, end)

    def begin(self) -> int:
        return self.first // _ALIGNMENT * _ALIGNMENT if self.end else 0

    def tensor(self) -> torch.Tensor:
        empty = torch.empty(0, dtype=torch.uint8)
        return empty.set_(self.storage, self.begin(), (max(self.end - self.begin(), 0),))


class Pickler(pickle.Pickler):
    """Pickles all but tensors and storages on the CPU. `parts` has their memory; `recipes` says of
    each of them how it is made from a part."""

    # One for all: a ForkingPickler copies its table for each pickle.
    dispatch_table = ForkingPickler(io.BytesIO()).dispatch_table

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.parts: dict[int, _Part] = {}  # by the identity that PyTorch gives a storage
        self.recipes: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}  # of parts
        self._known: dict[int, tuple[object, int]] = {}  # by id(): the object, and its recipe

    def _part(self, storage: torch.UntypedStorage) -> tuple[int, _Part]:
        key = storage._cdata
        part = self.parts.get(key)
        if part is None:
            part = self.parts[key] = _Part(storage)
            self._numbers[key] = len(self._numbers)
        return self._numbers[key], part

    def persistent_id(self, x: object) -> int | None:
        is_tensor = type(x) in _TENSORS
        if not is_tensor and not isinstance(x, _STORAGES):
            return None
        known = self._known.get(id(x))
        if known is None:
            recipe = self._tensor(x) if is_tensor else self._storage(x)
            if recipe is None:
                return None  # not on the CPU, or sparse: PyTorch knows how to pickle it
            known = self._known[id(x)] = x, len(self.recipes)
            self.recipes.append(recipe)
        return known[1]

    def _storage(self, x: Any) -> tuple[Any, ...] | None:
        typed = isinstance(x, torch.storage.TypedStorage)
        storage = x._untyped_storage if typed else x
        if storage.device.type != "cpu":
            return None
        number, part = self._part(storage)
        part.add(0, storage.nbytes())
        return number, x.dtype if typed else None

    def _tensor(self, t: Any) -> tuple[Any, ...] | None:
        if t.layout is not torch.strided or t.device.type != "cpu" or t.is_quantized:
            return None
        if t.requires_grad and not t.is_leaf:
            raise RuntimeError(
                "a tensor that requires_grad and is the result of a computation cannot be passed "
                "to another process, which has no part in its graph: put t.detach()"
            )
        is_parameter, requires_grad = type(t) is torch.nn.Parameter, t.requires_grad
        if t.is_conj() or t.is_neg():  # bits of a view that its memory does not tell
            t = t.detach().resolve_conj().resolve_neg()
        number, part = self._part(t.untyped_storage())
        shape, strides, first, size = tuple(t.shape), t.stride(), t.storage_offset(), t.itemsize
        if t.numel():
            last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
            part.add(first * size, (last + 1) * size)
        return number, t.dtype, first, shape, strides, requires_grad, is_parameter


class Unpickler(pickle.Unpickler):
    """Loads what a Pickler has dumped. `parts`: a storage and where it begins, for each part."""

    def __init__(
        self,
        file: io.BytesIO,
        parts: list[tuple[torch.UntypedStorage, int]],
        recipes: list[tuple[Any, ...]],
    ) -> None:
        super().__init__(file)
        self._made = [_make(*parts[number], *how) for number, *how in recipes]

    def persistent_load(self, key: Any) -> Any:
        return self._made[key]


def _make(storage: torch.UntypedStorage, begin: int, dtype: torch.dtype | None, *how: Any) -> Any:
    if not how:
        if dtype is None:
            return storage
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
    first, shape, strides, requires_grad, is_parameter = how
    t = torch.empty(0, dtype=dtype)
    # An empty tensor may begin before the part that was sent.
    t.set_(storage, max(first - begin // t.itemsize, 0), shape, strides)
    if is_parameter:
        return torch.nn.Parameter(t, requires_grad)
    return t.requires_grad_() if requires_grad else t
