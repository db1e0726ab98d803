# SPDX-License-Identifier: Apache-2.0
"""Batches that loader processes publish, and trainers take as a dataset.

Each epoch of a loader is a publisher of its own, on TOPIC/EPOCH: an epoch ends for a trainer when
all loaders have left that topic, and all batches are done. A message is {"batch": BATCH}.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset

import dlx

from ._memory import Memory

GROUP = "trainers"
_FAILURE_S = 86_400  # how long trainers can read why a loader failed


class Published(NamedTuple):
    """What publish_batches() has done."""

    batches: int
    lost: list[int]  # process ids of trainers that died while they were attached


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns the nested value with function(leaf) for each leaf."""
    if isinstance(value, Mapping):
        return {key: _map(function, each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(_map(function, x) for x in value)
    return function(value)


class _Packer:
    """Makes a message of a batch."""

    def __init__(self, publisher: dlx.Publisher) -> None:
        self.memory = Memory(publisher)
        self.shares = False  # has the batch a tensor of `memory`?
        self._n_tensors = 0

    def _leaf(self, value: Any) -> Any:
        if value is None or isinstance(value, (str, bool, int, float, complex)):
            return value
        self._n_tensors += 1
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return value
        value = value.resolve_conj().resolve_neg()  # bits that dlpack does not pass on
        own = self.memory.find(value.untyped_storage())
        if own is None or (own.shape, own.dtype) != (value.shape, value.dtype):
            return value
        if not value.is_contiguous():  # such as the transpose of a square
            return value
        self.shares = True
        return own

    def pack(self, batch: object) -> dict[str, object]:
        self._n_tensors, self.shares = 0, False
        message = {"batch": _map(self._leaf, batch)}
        if self._n_tensors == 0:  # a message has at least one
            message["none"] = torch.empty(0)
        return message


def publish_batches(
    loader: Iterable[object] | Callable[[Callable[..., torch.Tensor]], Iterable[object]],
    topic: str,
    *,
    epochs: int = 1,
    first_epoch: int = 0,
    group: str | None = GROUP,
    trainers: int = 1,
    depth: int = 8,
    timeout: float | None = None,
    socket: str | os.PathLike[str] | None = None,
) -> Published:
    """Publishes the batches of a loader for the trainers that read dlx.contrib.torch.Batches, and
    returns when they have done them.

    loader       an iterable of batches, such as a DataLoader; or a function that returns one and is
                 called with empty(shape, dtype=torch.float32) for each epoch. Tensors that empty()
                 makes are published without a copy, and the loader does not write to one after it
                 has yielded it. A batch is a tensor, or dicts, lists and tuples of tensors and
                 scalars
    topic        each loader has a topic of its own, such as "batches/0"
    epochs       how often the loader is iterated; the first epoch has the number `first_epoch`
    group        the trainers with this group share the batches: each batch goes to one of them,
                 also to another one if the first is killed. None: each trainer gets each batch
    trainers     how many trainers an epoch waits for before it begins, less those that died: all
                 of them see its end
    depth        how many batches may wait
    timeout      seconds to wait for trainers, and from one batch that they have done to the next
                 (dlx.Timeout); None: without a limit
    socket       path of the daemon's socket; None: as for dlx.connect()

    Raises ValueError (the topic has a loader), dlx.Timeout, what the loader raises, and what
    connect(), publisher() and publish() raise.
    """
    done = Published(0, [])
    with dlx.connect(socket) as c:
        for epoch in range(first_epoch, first_epoch + epochs):
            name = f"{topic}/{epoch}"
            with contextlib.suppress(dlx.NotFound):
                c.drop_queue(name)  # what an earlier run has left
            for other in c.publishers(name):
                raise ValueError(
                    f"topic {name} has a loader, with pid {other['pid']}: give each loader a topic "
                    "of its own"
                )
            with c.publisher(
                name,
                on_full="block",
                depth=depth,
                timeout=timeout,
                require=1 if group is None else 0,
                groups=() if group is None else [group],
            ) as pub:
                try:
                    pub.wait(max(trainers - len(done.lost), 1), timeout)
                    n = _publish(loader, pub)
                    if group is None:
                        pub.publish(torch.empty(0), meta={"batches": n})  # which all trainers get
                    else:
                        _drain(c, pub, timeout)
                except BaseException as e:
                    _tell(c, pub, e)
                    raise
                lost = [event.pid for event in pub.events() if event.kind == "lost"]
                done = Published(done.batches + n, done.lost + lost)
    return done


def _publish(loader: Any, pub: dlx.Publisher) -> int:
    packer, n = _Packer(pub), 0
    for batch in loader(packer.memory.empty) if callable(loader) else loader:
        message = packer.pack(batch)
        pub.publish(message, meta={"batch": n}, share=packer.shares)
        n += 1
    return n


def _drain(c: dlx.Connection, pub: dlx.Publisher, timeout: float | None) -> None:
    """Waits until all batches are done, with at most `timeout` seconds from one to the next."""

    def count() -> int:
        n: int = sum(x["done"] for x in c.groups(pub.topic) if x["publisher"] == pub.id)
        return n

    n_done = count()
    while True:
        try:
            return pub.drain(timeout)
        except dlx.Timeout:
            before, n_done = n_done, count()
            if n_done == before:
                raise


def _tell(c: dlx.Connection, pub: dlx.Publisher, error: BaseException) -> None:
    """Leaves the reason why an epoch has no more batches, which trainers get at its end."""
    text = f"the loader with pid {os.getpid()} failed: {type(error).__name__}: {error}"
    try:
        with c.publisher(f"{pub.topic}/failed", retain=1, retain_for=_FAILURE_S) as failed:
            failed.publish(torch.empty(0), meta={"publisher": pub.id, "text": text})
    except dlx.Error as e:  # `error` goes on
        error.add_note(f"trainers take this epoch for complete: they could not be told: {e}")


class Batches(IterableDataset[Any]):
    """A dataset of the batches that loaders publish with publish_batches(), for
    DataLoader(ds, batch_size=None) or a plain loop. Each iteration is one epoch.

    topic    of the loaders, or a pattern ("batches/*"), in which case `loaders` is given
    loaders  how many loaders there are: an epoch ends when all of them have ended it
    group    as for publish_batches(). A batch is done when the next one is asked for; a batch that
             was left before is given to another trainer
    private  tensors may be written to, which no other process sees. False: they are read-only, and
             a write to one ends the process
    pin      a GPU ("cuda:0") that copies from received memory by itself, as with pin_memory
    max_held how many batches of this epoch may be in use at once
    timeout  seconds to wait for a batch (dlx.Timeout); None: without a limit
    socket   path of the daemon's socket; None: as for dlx.connect()

    Give a timeout: a trainer that begins, or begins again, when a loader has already ended the
    epoch does not see its end, and would wait without a limit.

    A worker process of a DataLoader (num_workers > 0) asks for batches before the trainer does, so
    batches that it has passed on are done, and are lost if the trainer is killed. With
    num_workers=0 they go to another trainer; the loaders work at the same time all the same.

    An iteration raises RuntimeError if a loader was killed or has failed, if a batch was given back
    too often (a "dead letter"), or if this trainer of no group began too late for the first
    batches; dlx.Timeout; and what connect(), subscribe() and take() raise. Batches() raises
    ValueError for a pattern without `loaders`.
    """

    def __init__(
        self,
        topic: str,
        *,
        loaders: int | None = None,
        group: str | None = GROUP,
        private: bool = True,
        pin: str | None = None,
        max_held: int = 64,
        timeout: float | None = None,
        socket: str | os.PathLike[str] | None = None,
    ) -> None:
        if loaders is None and "*" in topic:
            raise ValueError(
                f"Batches({topic!r}): a pattern does not say how many loaders end an epoch: give "
                "loaders=N"
            )
        self.topic, self.loaders, self.group = topic, loaders or 1, group
        self.private, self.pin, self.max_held = private, pin, max_held
        self.timeout, self.socket = timeout, socket
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iteration is. It is needed for a trainer that begins later, and
        before each epoch if DataLoader has workers that are not persistent."""
        self.epoch = epoch

    def _name(self) -> str:
        return f"{self.topic}/{self.epoch}"

    def _failed(self, reason: str, n: int) -> RuntimeError:
        return RuntimeError(
            f"epoch {self.epoch} of {self.topic} is not complete: {reason}; this trainer had {n} "
            "batches of it"
        )

    def _check(self, c: dlx.Connection, sub: dlx.Subscription, n: int) -> None:
        """Raises what has gone wrong."""
        for event in sub.events():
            if event.kind == "left":
                self._check_end(c, event, n)
            if event.kind == "lost":
                reason = f": {event.reason}" if event.reason else ""
                raise self._failed(f"the loader with pid {event.pid} died{reason}", n)
            if event.kind in ("dead_letter", "unseen"):
                raise self._failed(event.reason, n)

    def _check_end(self, c: dlx.Connection, left: dlx.Event, n: int) -> None:
        """Raises what the loader that left has said if it failed."""
        try:
            said = c.get(f"{left.topic}/failed").meta
        except (dlx.Timeout, dlx.InvalidError):  # there is none, or no room for its name
            return
        if said["publisher"] == left.publisher:  # not one of an earlier run
            raise self._failed(said["text"], n)

    def __iter__(self) -> Iterator[Any]:
        n = 0
        with (
            dlx.connect(self.socket) as c,
            c.subscribe(
                self._name(),
                group=self.group,
                reliable=self.group is None,
                publishers=self.loaders,
                private=self.private,
                pin=self.pin,
                max_held=self.max_held,
                timeout=self.timeout,
            ) as sub,
        ):
            next_of: dict[int, int] = {}
            n_ended = 0
            for message in sub:
                with message:
                    missed = message.seq - next_of.get(message.publisher, 1)
                    if self.group is None and missed:
                        raise self._failed(f"{missed} batches came before this trainer", n)
                    next_of[message.publisher] = message.seq + 1
                    if self.group is None and "batches" in message.meta:
                        n_ended += 1
                    else:
                        n += 1
                        yield _map(_tensor, message["batch"])
                self._check(c, sub, n)
            self._check(c, sub, n)
            if self.group is None and n_ended < self.loaders:
                raise self._failed("a loader had ended it before this trainer came", n)
        self.epoch += 1


def _tensor(value: Any) -> Any:
    return torch.from_dlpack(value) if isinstance(value, dlx.Tensor) else value
