# SPDX-License-Identifier: Apache-2.0
"""dlx for Ray: a tensor transport that hands tensors between the actors of one machine in shared
memory, without Ray's object store.

    dlx.contrib.ray.register(torch.Tensor)   # before the classes of the actors

    @ray.remote
    class Camera:
        @ray.method(tensor_transport="dlx")
        def take(self):
            frame = dlx.contrib.ray.empty((1080, 1920, 3), torch.uint8)
            ...                              # fill it
            return frame                     # copies nothing

A tensor in other memory is copied once. Each process has a pool of payloads. A payload is a
publisher with a topic of its own, `ray/PROCESS/NUMBER`, that retains one message: the memory that
tensors lie in, while an object of Ray uses them, and otherwise nothing.
"""

import contextlib
import ctypes
import math
import os
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.experimental import (
    CommunicatorMetadata,
    TensorTransportManager,
    TensorTransportMetadata,
    register_tensor_transport,
)

import dlx

__all__ = ["DlxMetadata", "DlxTransport", "empty", "keep_spare", "register"]

_ALIGNMENT = 64  # of tensors in a payload, and of its size, in bytes
_ROOMY = 1 << 20  # bytes that the payload of a small tensor may have
_MOST_SPARE = 64  # payloads

# What tensors hold that lie in a payload, and weak references refer to: NumPy does not keep a
# memoryview, but makes one of its own.
_Memory = ctypes.Array[ctypes.c_char]


@dataclass
class DlxMetadata(TensorTransportMetadata):
    """Where a receiver finds the tensors of an object: of each the topic and the number of the
    message, and its offset and strides there, in bytes."""

    library: str = ""
    node: str = ""
    places: list[tuple[str, int, int, tuple[int, ...]]] = field(default_factory=list)


class _NumPy:
    """What differs for arrays of NumPy."""

    @staticmethod
    def check(x: Any) -> None:
        if x.dtype.hasobject:
            raise TypeError(f"dlx carries no array of {x.dtype} between actors: it has objects")

    @staticmethod
    def place(x: Any) -> tuple[int, tuple[int, ...]]:
        return x.__array_interface__["data"][0], x.strides

    @staticmethod
    def dense_strides(x: Any) -> tuple[int, ...]:
        import numpy as np

        strides: tuple[int, ...] = np.empty_like(x, subok=False).strides
        return strides

    @staticmethod
    def view(memory: _Memory, offset: int, shape: Any, dtype: Any, strides: Any = None) -> Any:
        import numpy as np

        return np.ndarray(shape, dtype, memory, offset, strides)  # type: ignore[arg-type]

    @staticmethod
    def copy(to: Any, x: Any) -> None:
        to[...] = x


class _Torch:
    """What differs for tensors of PyTorch."""

    @staticmethod
    def check(x: Any) -> None:
        import torch

        if x.device.type != "cpu" or x.layout is not torch.strided or x.is_quantized:
            raise TypeError(
                "dlx carries dense tensors in CPU memory between actors, not one of "
                f"{x.dtype}, {x.layout} on {x.device}: return x.cpu(), or x.to_dense()"
            )

    @staticmethod
    def place(x: Any) -> tuple[int, tuple[int, ...]]:
        address = 0 if x.is_conj() or x.is_neg() else x.data_ptr()
        return address, tuple(step * x.itemsize for step in x.stride())

    @staticmethod
    def dense_strides(x: Any) -> tuple[int, ...]:
        import torch

        return tuple(step * x.itemsize for step in torch.empty_like(x, device="meta").stride())

    @staticmethod
    def view(memory: _Memory, offset: int, shape: Any, dtype: Any, strides: Any = None) -> Any:
        import torch

        base = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
        first = offset // dtype.itemsize
        if strides is None:
            return base[first : first + math.prod(shape)].view(shape)
        return base.as_strided(shape, [step // dtype.itemsize for step in strides], first)

    @staticmethod
    def copy(to: Any, x: Any) -> None:
        to.copy_(x.detach())


_LIBRARIES: dict[str, Any] = {"numpy": _NumPy, "torch": _Torch}


def _memory_of(tensor: dlx.Tensor) -> _Memory:
    return (ctypes.c_char * tensor.nbytes).from_buffer(memoryview(tensor))


def _aligned(n: int) -> int:
    return -(-n // _ALIGNMENT) * _ALIGNMENT


class _Payload:
    """A publisher, and memory for its message."""

    def __init__(self, publisher: dlx.Publisher) -> None:
        self.publisher = publisher
        self.objects: set[str] = set()  # objects of Ray that use the message
        self.tensor: dlx.Tensor | None = None
        self.address = self.size = self.room = self.seq = 0
        self.memory: weakref.ref[_Memory] | None = None  # which tensors of this process hold

    def allocate(self, size: int) -> _Memory:
        self.tensor = self.publisher.empty(size, "uint8")
        memory = _memory_of(self.tensor)
        self.memory = weakref.ref(memory, lambda _: _pool().release(self))
        self.address, self.size = ctypes.addressof(memory), size
        return memory

    def use(self, object_id: str) -> None:
        if not self.objects:
            assert self.tensor is not None
            self.seq = self.publisher.publish(self.tensor, share=True, strict=True).seq
        self.objects.add(object_id)

    def unuse(self, object_id: str) -> None:
        self.objects.discard(object_id)
        if not self.objects:
            self.publisher.publish(b"")  # takes the place of the message

    def become_spare(self) -> bool:
        if self.objects or (self.memory is not None and self.memory() is not None):
            return False
        self.size, self.tensor, self.memory = 0, None, None
        self.room = self.publisher.stats()["arena_bytes"]
        return True


class _Pool:
    """The payloads of this process. A payload that may have become spare is put in `released`:
    destructors do so, which must not wait for the lock."""

    keep = 256 << 20  # bytes of spare payloads

    def __init__(self) -> None:
        self.pid, self.connection = os.getpid(), dlx.connect(name="ray")
        self._prefix, self._n_made = f"ray/{uuid.uuid4().hex}", 0
        self._lock, self._released = threading.Lock(), deque[_Payload]()
        self._used: list[_Payload] = []
        self._spare: list[_Payload] = []  # the last one that was used comes last

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self._lock:
            yield
        self._sweep()

    def _sweep(self) -> None:
        """Sorts what was released; if another thread has the lock, that one does so when it has
        released the lock."""
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    payload = self._released.popleft()
                    if payload in self._used and payload.become_spare():
                        self._used.remove(payload)
                        self._spare.append(payload)
                self._trim()
            finally:
                self._lock.release()

    def _trim(self) -> None:
        room = sum(payload.room for payload in self._spare)
        while room > self.keep or len(self._spare) > _MOST_SPARE:
            payload = self._spare.pop(0)
            room -= payload.room
            payload.publisher.close()

    def set_keep(self, n_bytes: int) -> None:
        with self.locked():
            self.keep = n_bytes
            self._trim()

    def release(self, payload: _Payload) -> None:
        self._released.append(payload)
        self._sweep()

    def allocate(self, n_bytes: int) -> tuple[_Payload, _Memory]:
        """Returns a payload of so many bytes, which is in use while its memory is referred to."""
        size = _aligned(max(n_bytes, 1))
        with self.locked():
            fitting = [x for x in self._spare if size <= x.room <= max(2 * size, _ROOMY)]
            if fitting:
                payload = min(fitting, key=lambda x: x.room)
                self._spare.remove(payload)
            else:
                self._n_made += 1
                topic = f"{self._prefix}/{self._n_made}"
                payload = _Payload(
                    self.connection.publisher(topic, depth=1, retain=1, retain_for="latched")
                )
        # In no list while it gets memory: another thread that releases it late finds nothing spare.
        try:
            return payload, payload.allocate(size)  # new memory takes 1 ms for each MiB
        finally:
            with self.locked():
                self._used.append(payload)
            if payload.memory is None:  # it got none
                self.release(payload)

    def find(self, address: int) -> _Payload | None:
        with self.locked():
            return next((x for x in self._used if 0 <= address - x.address < x.size), None)


_the_pool: _Pool | None = None
_making = threading.RLock()


def _pool() -> _Pool:
    global _the_pool
    with _making:
        if _the_pool is None or _the_pool.pid != os.getpid():
            _the_pool = _Pool()
        return _the_pool


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """Returns a tensor, not initialized, that an actor hands to others without a copy: a
    torch.Tensor for a dtype of PyTorch, otherwise a numpy.ndarray. When it is gone, and the objects
    of Ray that it is in, its memory is used again. Until then, what the actor writes to it is seen
    by those who receive it.

    Raises dlx.NoMemory, dlx.LimitError, dlx.DaemonError.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    library = "torch" if type(dtype).__module__ == "torch" else "numpy"
    if library == "numpy":
        import numpy as np

        dtype = np.dtype(dtype)
    _, memory = _pool().allocate(math.prod(shape) * dtype.itemsize)
    return _LIBRARIES[library].view(memory, 0, shape, dtype)


def keep_spare(n_bytes: int) -> None:
    """Sets how many bytes of shared memory this process keeps for its next tensors, instead of
    giving them back: 256 MiB unless it says otherwise. New memory takes about 1 ms for each MiB."""
    _pool().set_keep(n_bytes)


class DlxTransport(TensorTransportManager):
    """Received tensors may be written to, which no other process sees: a page is copied when it is
    first written to."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[DlxMetadata, set[_Payload]]] = {}

    def tensor_transport_backend(self) -> str:
        return "DLX"

    @staticmethod
    def is_one_sided() -> bool:
        return True

    @staticmethod
    def can_abort_transport() -> bool:
        return True  # a receiver waits for the daemon alone

    def abort_transport(self, obj_id: str, communicator_metadata: CommunicatorMetadata) -> None:
        pass

    def actor_has_tensor_transport(self, actor: Any) -> bool:
        return True

    def get_communicator_metadata(
        self, src_actor: Any, dst_actor: Any, backend: str | None = None
    ) -> CommunicatorMetadata:
        return CommunicatorMetadata()

    def send_multiple_tensors(
        self, tensors: Any, tensor_transport_metadata: Any, communicator_metadata: Any
    ) -> None:
        raise NotImplementedError("the transport is one-sided: receivers find the tensors")

    def extract_tensor_transport_metadata(
        self, obj_id: str, rdt_object: list[Any]
    ) -> TensorTransportMetadata:
        """Publishes the tensors of an object."""
        if obj_id in self._objects:  # the actor's method ran again
            return self._objects[obj_id][0]
        if not rdt_object:
            return DlxMetadata(tensor_meta=[])
        library = "numpy" if hasattr(rdt_object[0], "__array_interface__") else "torch"
        its, pool = _LIBRARIES[library], _pool()
        for x in rdt_object:
            its.check(x)
        owners = [pool.find(its.place(x)[0]) for x in rdt_object]
        sizes = [
            _aligned(x.nbytes) for x, owner in zip(rdt_object, owners, strict=True) if owner is None
        ]
        copies, memory = pool.allocate(sum(sizes)) if sizes else (None, None)
        places: list[tuple[_Payload, int, tuple[int, ...]]] = []
        end = 0
        for x, owner in zip(rdt_object, owners, strict=True):
            if owner is not None:
                address, strides = its.place(x)
                places.append((owner, address - owner.address, strides))
            elif copies is not None:
                strides = its.dense_strides(x)
                its.copy(its.view(memory, end, x.shape, x.dtype, strides), x)
                places.append((copies, end, strides))
                end += _aligned(x.nbytes)
        with pool.locked():
            payloads = {payload for payload, *_ in places}
            for payload in payloads:
                payload.use(obj_id)
            metadata = DlxMetadata(
                tensor_meta=[(x.shape, x.dtype) for x in rdt_object],
                tensor_device="cpu",
                library=library,
                node=ray.get_runtime_context().get_node_id(),
                places=[
                    (p.publisher.topic, p.seq, offset, strides) for p, offset, strides in places
                ],
            )
            self._objects[obj_id] = metadata, payloads
        return metadata

    def recv_multiple_tensors(
        self,
        obj_id: str,
        tensor_transport_metadata: TensorTransportMetadata,
        communicator_metadata: CommunicatorMetadata,
        target_buffers: list[Any] | None = None,
    ) -> list[Any]:
        """Makes the tensors of an object, or fills those that are given."""
        metadata = tensor_transport_metadata
        assert isinstance(metadata, DlxMetadata)
        opened = {
            place: self._open(obj_id, metadata, *place)
            for place in {(topic, seq) for topic, seq, *_ in metadata.places}
        }
        tensors = [
            _LIBRARIES[metadata.library].view(opened[topic, seq], offset, shape, dtype, strides)
            for (shape, dtype), (topic, seq, offset, strides) in zip(
                metadata.tensor_meta, metadata.places, strict=True
            )
        ]
        if not target_buffers:
            return tensors
        for buffer, x in zip(target_buffers, tensors, strict=True):
            _LIBRARIES[metadata.library].copy(buffer, x)
        return target_buffers

    def _open(self, obj_id: str, metadata: DlxMetadata, topic: str, seq: int) -> _Memory:
        cause = None
        try:
            message = _pool().connection.get(topic)
            if message.seq == seq:
                return _memory_of(message.private(0))
        except dlx.Timeout as e:  # no such topic
            cause = e
        here = ray.get_runtime_context().get_node_id()
        if here == metadata.node:
            reason = "the actor that made it has ended or freed it"
        else:
            reason = (
                f"it was made on node {metadata.node}, and this is node {here}; dlx carries "
                "tensors within a machine"
            )
        raise RuntimeError(
            f"dlx finds no tensors of object {obj_id} on topic {topic}: {reason}"
        ) from cause

    def garbage_collect(self, obj_id: str, tensor_transport_meta: Any, tensors: list[Any]) -> None:
        """Frees the memory of an object that no other object and no tensor of this process uses."""
        pool = _pool()
        _, payloads = self._objects.pop(obj_id, (None, set[_Payload]()))
        with pool.locked():
            for payload in payloads:
                payload.unuse(obj_id)
        for payload in payloads:
            pool.release(payload)


def register(data_type: type, name: str = "dlx") -> None:
    """Registers the transport with Ray: in the process that makes the actors, before their classes
    name the transport. An actor that only receives needs @ray.remote(enable_tensor_transport=True).

    data_type  torch.Tensor or numpy.ndarray: what the transport carries of a method's result
    name       as in @ray.method(tensor_transport=name); one for each data_type
    """
    register_tensor_transport(name, ["cpu"], DlxTransport, data_type)
