# SPDX-License-Identifier: Apache-2.0
"""A queue of processes with the interface of torch.multiprocessing.Queue.

An item is a message on a topic of its own: the first tensor is a pickle, and the others are the
memory of the storages that the tensors in the item have. Each process that puts is a publisher, and
each that gets is a worker of one group.
"""

import contextlib
import hashlib
import hmac
import io
import math
import os
import pickle
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import util
from typing import Any, NamedTuple

import torch

import dlx

from ._items import Pickler, Unpickler
from ._memory import Memory

_GROUP = "get"
_MOST = 4096  # messages of a publisher that may wait, and that a process may hold
_DIGEST = 16  # bytes
_LOOK_S = 0.01  # how often put() looks for room while another thread is in it, after its time
_KEPT_S = 86_400  # how long items stay that a process has put which has ended


class _Settings(NamedTuple):
    """What all processes of a queue know."""

    topic: str
    socket: str
    depth: int
    private: bool
    key: bytes  # of the digest of each item: a pickle of another program is not loaded


class _Ends:
    """What one process has of a queue: a publisher and a subscription, once it needs them."""

    def __init__(self, settings: _Settings, connection: dlx.Connection | None = None) -> None:
        self.pid, self.closed = os.getpid(), False
        self.put_lock, self.get_lock = threading.Lock(), threading.Lock()
        self._settings, self._lock = settings, threading.RLock()
        self._connection = connection
        self._writer: tuple[dlx.Publisher, Memory] | None = None
        self._subscription: dlx.Subscription | None = None

    def connection(self) -> dlx.Connection:
        with self._lock:
            if self._connection is None:
                self._connection = dlx.connect(self._settings.socket)
            return self._connection

    def writer(self) -> tuple[dlx.Publisher, Memory]:
        with self._lock:
            if self._writer is None:
                publisher = self.connection().publisher(
                    self._settings.topic,
                    groups=[_GROUP],
                    depth=self._settings.depth,
                    retain_for=_KEPT_S,
                )
                self._writer = publisher, Memory(publisher)
            return self._writer

    def subscription(self) -> dlx.Subscription:
        with self._lock:
            if self._subscription is None:
                self._subscription = self.connection().subscribe(
                    self._settings.topic,
                    group=_GROUP,
                    stay=True,
                    max_held=_MOST,
                    private=self._settings.private,
                )
            return self._subscription

    def close(self) -> None:
        self.closed = True
        if self._writer is not None:
            self._writer[0].close()
        for handle in (self._subscription, self._connection):
            if handle is not None:
                handle.close()


def _drop(settings: _Settings, ends: _Ends) -> None:
    """Frees what this process, and others that have ended, have put, and no process has got."""
    with contextlib.suppress(dlx.Error):  # or the daemon has ended, and the items with it
        ends.close()  # only what a publisher has left can be dropped
        with dlx.connect(settings.socket) as c:
            c.drop_queue(settings.topic)


def _until(block: bool, timeout: float | None) -> float:
    if not block:
        return 0
    return math.inf if timeout is None else time.monotonic() + max(timeout, 0)


def _left(until: float) -> float | None:
    return None if until == math.inf else max(until - time.monotonic(), 0)


@contextlib.contextmanager
def _held(
    lock: threading.Lock,
    until: float,
    failure: type[Exception],
    is_so: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Has the lock; raises `failure` if another thread has it past the time, and it is so."""
    left = _left(until)
    wait = -1 if left is None else left
    while not lock.acquire(timeout=wait):
        if is_so():
            raise failure
        wait = _LOOK_S
    try:
        yield
    finally:
        lock.release()


class Queue:
    """A queue with the interface of torch.multiprocessing.Queue, for processes that are forked or
    spawned. The memory of tensors on the CPU passes through dlx, and what else an item has is
    pickled. Each item goes to one process.

    maxsize  how many items of each process that puts may wait, at most 4096; 0: 4096
    private  get() returns tensors that may be written to, which no other process sees. False: they
             are read-only, and a write to one ends the process
    socket   path of the daemon's socket; None: as for dlx.connect()

    Raises what connect() raises.
    """

    def __init__(
        self,
        maxsize: int = 0,
        *,
        private: bool = True,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        c = dlx.connect(socket)  # which keeps a private daemon as long as this process
        self._settings = _Settings(
            topic=f"queue/{uuid.uuid4().hex}",
            socket=c.daemon()["socket"],
            depth=min(maxsize, _MOST) if maxsize > 0 else _MOST,
            private=private,
            key=os.urandom(_DIGEST),
        )
        self._ends = _Ends(self._settings, c)
        util.Finalize(self, _drop, (self._settings, self._ends), exitpriority=-100)

    def __getstate__(self) -> _Settings:
        return self._settings

    def __setstate__(self, settings: _Settings) -> None:
        self._settings = settings
        self._ends = _Ends(settings)

    def _here(self) -> _Ends:
        """What this process has, which a forked one makes anew."""
        if self._ends.pid != os.getpid():
            self._ends = _Ends(self._settings)
        if self._ends.closed:
            raise ValueError(f"Queue {self!r} is closed")
        return self._ends

    def new_empty(
        self, size: int | Sequence[int], dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """Returns a tensor, not initialized, that put() passes on without a copy, also within an
        item. Once it was put, the process that gets it shares its memory: make a new one for the
        next item instead of writing to it. Raises ValueError (the queue is closed), and what
        publisher() and empty() of a publisher raise."""
        return self._here().writer()[1].empty(size, dtype)

    def put(self, obj: object, block: bool = True, timeout: float | None = None) -> None:
        """Puts an item, in the calling thread: what cannot be pickled raises here. Raises
        queue.Full if there is no room (in time), ValueError (the queue is closed), RuntimeError (a
        tensor is part of a graph), and what publisher() and publish() raise."""
        until, ends = _until(block, timeout), self._here()
        publisher, memory = ends.writer()
        file = io.BytesIO()
        pickler = Pickler(file)
        pickler.dump(obj)
        begins: list[int] = []
        tensors: list[dlx.Tensor | torch.Tensor] = []
        for part in pickler.parts.values():
            own = memory.find(part.storage)
            begins.append(part.begin() if own is None else 0)
            tensors.append(part.tensor() if own is None else own)
        data = pickle.dumps((begins, pickler.recipes)) + file.getbuffer()
        with _held(ends.put_lock, until, queue.Full, self.full):
            try:
                publisher.publish(
                    [self._digest(data) + data, *tensors], share=True, timeout=_left(until)
                )
            except (dlx.Full, dlx.Timeout):
                raise queue.Full from None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Takes the next item. Raises queue.Empty if there is none (in time), ValueError
        (the queue is closed), what unpickling raises, and what subscribe() and take() raise. An
        item whose memory cannot be opened here is given back."""
        until, ends = _until(block, timeout), self._here()
        with _held(ends.get_lock, until, queue.Empty):
            while True:
                try:
                    message = ends.subscription().take(_left(until))
                except dlx.Timeout:
                    raise queue.Empty from None
                try:
                    first, *memory = message.tensors
                    data = first.tobytes()
                    storages = [torch.from_dlpack(t).untyped_storage() for t in memory]
                except BaseException:
                    message.give_back()  # to another process, or to this one again
                    raise
                message.done()
                if hmac.compare_digest(data[:_DIGEST], self._digest(data[_DIGEST:])):
                    break
                warnings.warn(
                    f"{self!r}: passed over a message of another program on topic {message.topic}",
                    RuntimeWarning,
                    stacklevel=2,
                )
        file = io.BytesIO(data[_DIGEST:])
        begins, recipes = pickle.load(file)
        try:
            return Unpickler(file, list(zip(storages, begins, strict=True)), recipes).load()
        except Exception as e:
            e.add_note(f"{self!r}: message {message.seq} of {message.topic} is lost by this")
            raise

    def _digest(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=_DIGEST, key=self._settings.key).digest()

    def put_nowait(self, obj: object) -> None:
        """Does as put(obj, False)."""
        self.put(obj, False)

    def get_nowait(self) -> Any:
        """Does as get(False)."""
        return self.get(False)

    def _groups(self) -> list[Any]:
        return self._here().connection().groups(self._settings.topic)

    def qsize(self) -> int:
        """Returns how many items wait, of all processes, as the daemon sees it."""
        n: int = sum(group["waiting"] for group in self._groups())
        return n

    def empty(self) -> bool:
        """Returns whether no item waits. For a tensor in shared memory, call new_empty()."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Returns whether put() of this process would wait for room."""
        own = self._here().writer()[0].id
        undone: int = sum(
            group["waiting"] + group["in_flight"]
            for group in self._groups()
            if group["publisher"] == own
        )
        return undone >= self._settings.depth

    def close(self) -> None:
        """Says that this process neither puts nor gets any more. What it has put stays."""
        if self._ends.pid == os.getpid():
            self._ends.close()

    def join_thread(self) -> None:
        """Does nothing: put() has no thread of its own."""

    def cancel_join_thread(self) -> None:
        """Does nothing: put() has no thread of its own."""

    def __repr__(self) -> str:
        return f"<dlx.contrib.torch.Queue {self._settings.topic}>"
