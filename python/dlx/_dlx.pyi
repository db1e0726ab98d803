# SPDX-License-Identifier: Apache-2.0
# The types of the extension module. Its docstrings are in python/src.
import os
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    Mapping,
    Sequence,
    ValuesView,
)
from types import TracebackType
from typing import (
    ClassVar,
    Final,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    final,
    overload,
)

import numpy as np
import torch as _torch
from _typeshed import MaybeNone, structseq
from typing_extensions import Buffer, CapsuleType, disjoint_base

from ._dtype import DType

__version__: str

class _DLPack(Protocol):
    @property
    def __dlpack__(self) -> object: ...  # a method, whose parameters differ between libraries
    @property
    def __dlpack_device__(self) -> Callable[[], tuple[object, int]]: ...

class _ArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> Mapping[str, object]: ...

# Buffer: bytes, bytearray, memoryview, array, mmap. CapsuleType: a DLPack capsule, which publish()
# consumes.
TensorLike: TypeAlias = Tensor | _DLPack | _ArrayInterface | Buffer | CapsuleType

class _NamedDType(Protocol):
    @property
    def name(self) -> str: ...

class _TorchDType(Protocol):
    @property
    def is_floating_point(self) -> bool: ...
    @property
    def is_complex(self) -> bool: ...

_T = TypeVar("_T", bound=TensorLike)
_D = TypeVar("_D")

_Nested: TypeAlias = bool | int | float | complex | list[_Nested]
# A name, "uint8"; or a dtype of NumPy, PyTorch, JAX, ml_dtypes; or bool, int, float, complex.
DTypeLike: TypeAlias = str | type | _NamedDType | _TorchDType
# A mapping may be nested, with sequences and scalars in it, as an optimizer's state. Its values are
# `object`, since that is what a checker makes of one in a variable: dict[str, object].
MessageLike: TypeAlias = (
    TensorLike | Mapping[str, object] | Mapping[int, object] | Sequence[TensorLike] | Message
)
# The content of a TreeMessage: isinstance() or match tells which.
TreeValue: TypeAlias = (
    Tensor
    | None
    | bool
    | int
    | float
    | complex
    | str
    | dict[str | int, TreeValue]
    | list[TreeValue]
    | tuple[TreeValue, ...]
)

class _Device(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def index(self) -> int: ...

# "cuda:0", "rocm:0", and where memory is allocated "cpu"; or what has that text, as
# torch.device("cuda:0").
Device: TypeAlias = str | _Device
# The values are what JSON can hold, and tuples, bytes, complex and NumPy's scalars: `object`, as in
# MessageLike.
Meta: TypeAlias = Mapping[str, object] | bytes | bytearray | memoryview

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _CupyStream(Protocol):
    @property
    def ptr(self) -> int: ...

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

# Of a GPU: a number as in the Python array API, or an object of PyTorch, CuPy or cuda.core; None:
# the default stream.
Stream: TypeAlias = int | _TorchStream | _CupyStream | _CudaStream | None

class PublisherStats(TypedDict):
    published: int
    published_bytes: int
    copied: int
    copied_bytes: int
    refused: int
    blocked: int
    bells: int
    arena_bytes: int
    n_arenas: int
    n_subscribers: int
    unprotected: int
    deleted_again: int
    cut: int
    gpu_waits: int
    gpu_arena_bytes: int
    undone: int

class SubscriptionStats(TypedDict):
    taken: int
    taken_bytes: int
    skipped: int
    lost: int
    sleeps: int
    rejected: int
    n_held: int
    n_publishers: int
    gpu_waits: int
    gpu_errors: int
    gpu_late: int
    pinned_bytes: int
    pin_failures: int
    has_daemon: bool
    n_claimed: int
    done: int
    redelivered: int
    dead: int

class CallerStats(TypedDict):
    calls: int
    replies: int
    failed: int
    workers_gone: int
    timed_out: int
    cancelled: int
    late: int
    n_in_flight: int
    n_workers: int

class ServiceStats(TypedDict):
    requests: int
    replies: int
    errors: int
    expired: int
    gone: int
    abandoned: int
    refused: int
    n_held: int
    n_callers: int

class PublisherInfo(TypedDict):
    topic: str
    client_name: str
    publisher: int
    published: int
    published_bytes: int
    arena_bytes: int
    control_bytes: int
    pid: int
    uid: int
    n_subscribers: int
    n_arenas: int
    depth: int
    history: int
    on_full: Literal["drop", "block"]
    retain: int
    retained: bool
    refused: int | None  # None, here and below: the daemon is older and does not tell
    copied: int | None
    copied_bytes: int | None
    blocked_ns: int | None
    blocked_at_ns: int | None
    for_everybody: bool

class LinkInfo(TypedDict):
    client_name: str
    link: int
    publisher: int
    taken: int
    skipped: int
    lost: int
    pid: int
    uid: int
    n_held: int
    max_held: int
    latest: bool
    reliable: bool
    blocks: bool
    joining: bool
    behind: int | None  # None: the daemon is older and does not tell
    group: int
    next_ns: int
    held_ns: int

class GroupInfo(TypedDict):
    topic: str
    name: str
    publisher: int
    group: int
    uid: int
    n_workers: int
    max_attempts: int
    lease_ns: int
    declared: bool
    gone: bool
    waiting: int
    in_flight: int
    done: int
    redelivered: int
    dead: int
    lost: int
    oldest: int
    oldest_ns: int
    client_name: str
    pid: int
    away: bool

class ClaimInfo(TypedDict):
    client_name: str
    seq: int
    published_ns: int
    link: int
    pid: int
    uid: int
    attempt: int

class DaemonInfo(TypedDict):
    version: str
    socket: str
    place: Literal["named", "user", "system", "tmp"]
    refused_by: str
    pid: int
    protocol: tuple[int, int]
    n_clients: int
    n_publishers: int
    n_links: int
    n_topics: int
    shared_bytes: int
    former_bytes: int
    uptime_ns: int
    memory: str
    longest_turn_ns: int
    pid_scope: str
    lack: str
    refused_access: int
    refused_limit: int
    refused_qos: int
    refused_other: int
    reclaimed: int

class DLPackInfo(TypedDict):
    libdlx: str
    built_for: tuple[int, int, int]
    dlpack: tuple[int, int]
    exchange_api: tuple[int, int]
    capsules: list[str]

@final
class Report(structseq[object], tuple[int, bool, int, int, int]):
    __match_args__: Final = ("seq", "copied", "n_copied", "copied_bytes", "subscribers")
    @property
    def seq(self) -> int: ...
    @property
    def copied(self) -> bool: ...
    @property
    def n_copied(self) -> int: ...
    @property
    def copied_bytes(self) -> int: ...
    @property
    def subscribers(self) -> int: ...

@final
class Qos(
    structseq[object],
    tuple[bool, Literal["drop", "block"], int, int, int, float | Literal["latched"] | None],
):
    __match_args__: Final = ("reliable", "on_full", "depth", "history", "retain", "retain_for")
    @property
    def reliable(self) -> bool: ...
    @property
    def on_full(self) -> Literal["drop", "block"]: ...
    @property
    def depth(self) -> int: ...
    @property
    def history(self) -> int: ...
    @property
    def retain(self) -> int: ...
    @property
    def retain_for(self) -> float | Literal["latched"] | None: ...

@final
class Observed(
    structseq[object],
    tuple[
        Literal["publisher", "subscription", "all"],
        bool,
        bool,
        int,
        int,
        int,
        str,
        str,
        bool | None,
        Literal["drop", "block"] | None,
        int | None,
        int | None,
        int | None,
        float | Literal["latched"] | None,
        tuple[str, ...] | None,
        bool | None,
        bool | None,
        bool | None,
        str | None,
    ],
):
    __match_args__: Final = (
        "kind",
        "gone",
        "own",
        "id",
        "pid",
        "uid",
        "topic",
        "client_name",
        "retained",
        "on_full",
        "depth",
        "history",
        "retain",
        "retain_for",
        "groups",
        "latest",
        "reliable",
        "accepts_unreliable",
        "group",
    )
    @property
    def kind(self) -> Literal["publisher", "subscription", "all"]: ...
    @property
    def gone(self) -> bool: ...
    @property
    def own(self) -> bool: ...
    @property
    def id(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def uid(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def client_name(self) -> str: ...
    @property
    def retained(self) -> bool | None: ...
    @property
    def on_full(self) -> Literal["drop", "block"] | None: ...
    @property
    def depth(self) -> int | None: ...
    @property
    def history(self) -> int | None: ...
    @property
    def retain(self) -> int | None: ...
    @property
    def retain_for(self) -> float | Literal["latched"] | None: ...
    @property
    def groups(self) -> tuple[str, ...] | None: ...
    @property
    def latest(self) -> bool | None: ...
    @property
    def reliable(self) -> bool | None: ...
    @property
    def accepts_unreliable(self) -> bool | None: ...
    @property
    def group(self) -> str | None: ...

@final
class Event(structseq[object], tuple[str, str, int, int, int, int, str]):
    __match_args__: Final = ("kind", "topic", "pid", "link", "publisher", "missed", "reason")
    @property
    def kind(
        self,
    ) -> Literal[
        "joined",
        "left",
        "lost",
        "unpinned",
        "late",
        "reconnected",
        "unseen",
        "cpu_waited",
        "dead_letter",
    ]: ...
    @property
    def topic(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def link(self) -> int: ...
    @property
    def publisher(self) -> int: ...
    @property
    def missed(self) -> int: ...
    @property
    def reason(self) -> str: ...

@final
class Tensor:
    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def __numpy_dtype__(self) -> np.dtype: ...
    @property
    def itemsize(self) -> int | float: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def copied(self) -> bool: ...
    @property
    def device(self) -> str: ...
    @property
    def published(self) -> bool: ...
    @property
    def status(self) -> Literal["ready", "waiting", "PUBLISHER_GONE", "DEVICE", "TIMEOUT"]: ...
    @property
    def __array_interface__(self) -> dict[str, object]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, object]: ...
    def __dlpack__(
        self,
        *,
        stream: Stream = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __getitem__(self, key: object, /) -> Tensor: ...
    def __setitem__(self, key: object, value: object, /) -> None: ...
    def __bool__(self) -> bool: ...
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: Iterable[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    @property
    def _is_padded(self) -> bool: ...
    def _view(self, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], /) -> Tensor: ...
    def _repr_html_(self) -> str: ...
    def _repr_png_(self) -> bytes | None: ...
    def _as_bits(self) -> Tensor: ...
    def _as_bytes(self) -> Tensor: ...
    def as_legacy(self) -> Tensor: ...
    def copy(self) -> Tensor: ...
    def numpy(self) -> np.ndarray: ...
    def torch(self) -> _torch.Tensor: ...
    def tolist(self) -> _Nested: ...
    def item(self) -> bool | int | float | complex: ...
    def tobytes(self) -> bytes: ...
    def __arrow_array__(self, type: object = None) -> object: ...
    def used_on(self, stream: Stream, /) -> None: ...

@final
class GpuRange:
    def __new__(cls) -> Self: ...

@disjoint_base
class Message:
    @property
    def topic(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def gap(self) -> int: ...
    @property
    def monotonic_ns(self) -> int: ...
    @property
    def publisher(self) -> int: ...
    # The publisher decides what it is, as with json.loads(): who knows that a dict comes need not
    # ask whether it is one, or of what type its values are. None: no metadata; bytes, where it gave
    # bytes.
    @property
    def meta(self) -> dict[str, MaybeNone] | MaybeNone: ...
    @property
    def meta_bytes(self) -> bytes: ...
    @property
    def qos(self) -> Qos: ...
    @property
    def released(self) -> bool: ...
    @property
    def attempt(self) -> int: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    @property
    def names(self) -> list[str | None]: ...
    def __getitem__(self, key: str | int, /) -> Tensor: ...
    # TypeError for a message of one tensor without a name
    def __len__(self) -> int: ...
    def __bool__(self) -> Literal[True]: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., object],
        types: Iterable[type],
        args: Iterable[object] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object: ...
    # of a NamedMessage alone
    @overload
    def get(self, key: str, default: None = None, /) -> Tensor | None: ...
    @overload
    def get(self, key: str, default: _D, /) -> Tensor | _D: ...
    def keys(self) -> KeysView[str]: ...
    def values(self) -> ValuesView[Tensor]: ...
    def items(self) -> ItemsView[str, Tensor]: ...
    # of a message of one tensor without a name alone
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def __numpy_dtype__(self) -> np.dtype: ...
    @property
    def itemsize(self) -> int | float: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def device(self) -> str: ...
    def numpy(self) -> np.ndarray: ...
    def torch(self) -> _torch.Tensor: ...
    def tolist(self) -> _Nested: ...
    def item(self) -> bool | int | float | complex: ...
    def tobytes(self) -> bytes: ...
    def as_legacy(self) -> Tensor: ...
    def __arrow_array__(self, type: object = None) -> object: ...
    def _specs(self) -> list[tuple[str, tuple[int, ...], int]]: ...
    def _repr_html_(self) -> str: ...
    def open_into(self, range: GpuRange, /, timeout: float | None = 5.0) -> None: ...
    def private(self, key: str | int, /) -> Tensor: ...
    def release(self) -> None: ...
    def done(self) -> None: ...
    def give_back(self) -> None: ...
    def renew(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
    __dlpack_c_exchange_api__: ClassVar[CapsuleType]
    def __dlpack__(
        self,
        *,
        stream: Stream = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

# A tensor that a C program left without a name among named ones has its number as its key, an int.
class NamedMessage(Message):
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...  # type: ignore[override]
    @overload
    def get(self, key: str, default: None = None) -> Tensor | None: ...
    @overload
    def get(self, key: str, default: _D) -> Tensor | _D: ...
    def keys(self) -> KeysView[str]: ...
    def values(self) -> ValuesView[Tensor]: ...
    def items(self) -> ItemsView[str, Tensor]: ...

# A nested dict.
@final
class TreeMessage(NamedMessage):
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: str | int, /) -> TreeValue: ...  # type: ignore[override]
    def __iter__(self) -> Iterator[str | int]: ...  # type: ignore[override]
    @overload  # type: ignore[override]
    def get(self, key: str | int, default: None = None) -> TreeValue: ...
    @overload
    def get(self, key: str | int, default: _D) -> TreeValue | _D: ...
    def keys(self) -> KeysView[str | int]: ...  # type: ignore[override]
    def values(self) -> ValuesView[TreeValue]: ...  # type: ignore[override]
    def items(self) -> ItemsView[str | int, TreeValue]: ...  # type: ignore[override]

@final
class Publisher:
    @property
    def timeout(self) -> float | None: ...
    @property
    def topic(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def empty(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        device: Device | None = "cpu",
    ) -> Tensor: ...
    def zeros(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        device: Device | None = "cpu",
    ) -> Tensor: ...
    @overload
    def empty_like(self, tensor: TensorLike, *, device: Device | None = "cpu") -> Tensor: ...
    @overload
    def empty_like(
        self, tensor: dict[str, _T], *, device: Device | None = "cpu"
    ) -> dict[str, Tensor]: ...
    def publish(
        self,
        tensors: MessageLike,
        *,
        meta: Meta | None = None,
        timeout: float | None = ...,
        strict: bool = False,
        share: bool = False,
        monotonic_ns: int = 0,
        stream: Stream = None,
        stage: bool = False,
    ) -> Report: ...
    def publish_many(
        self,
        messages: Iterable[MessageLike],
        *,
        timeout: float | None = ...,
        strict: bool = False,
        share: bool = False,
        monotonic_ns: int = 0,
        stream: Stream = None,
    ) -> Report: ...
    def wait(self, n: int = 1, timeout: float | None = None) -> None: ...
    def drain(self, timeout: float | None = None) -> None: ...
    def publish_async(
        self,
        tensors: MessageLike,
        *,
        meta: Meta | None = None,
        timeout: float | None = ...,
        strict: bool = False,
        share: bool = False,
        monotonic_ns: int = 0,
        stream: Stream = None,
    ) -> Coroutine[object, object, Report]: ...
    def wait_async(
        self, n: int = 1, timeout: float | None = None
    ) -> Coroutine[object, object, None]: ...
    def drain_async(self, timeout: float | None = None) -> Coroutine[object, object, None]: ...
    def fileno(self) -> int: ...
    def events(self) -> list[Event]: ...
    def stats(self) -> PublisherStats: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Subscription(Iterator[Message], AsyncIterator[Message]):
    timeout: float | None
    @property
    def topic(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def take(self, timeout: float | None = ..., *, stream: Stream = None) -> Message: ...
    def take_async(
        self, timeout: float | None = ..., *, stream: Stream = None
    ) -> Coroutine[object, object, Message]: ...
    def take_many(
        self, n: int, timeout: float | None = ..., *, stream: Stream = None
    ) -> list[Message]: ...
    def take_many_async(
        self, n: int, timeout: float | None = ..., *, stream: Stream = None
    ) -> Coroutine[object, object, list[Message]]: ...
    def try_take(self, *, stream: Stream = None) -> Message | None: ...
    @property
    def _hint_after(self) -> int | None: ...
    def _hint(self) -> None: ...
    def _ready(self) -> bool: ...
    def _check(self, n: int | None, stream: Stream, timeout: float | None = ..., /) -> None: ...
    def _poll(
        self, n: int = 0, stream: Stream = None, waited: float = ..., /
    ) -> Message | list[Message] | None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[object, object, Message]: ...
    def fileno(self) -> int: ...
    def events(self) -> list[Event]: ...
    def stats(self) -> SubscriptionStats: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Observer(Iterator[Observed], AsyncIterator[Observed]):
    @property
    def topic(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def next(self, timeout: float | None = None) -> Observed: ...
    def next_async(self, timeout: float | None = None) -> Coroutine[object, object, Observed]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Observed: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[object, object, Observed]: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Caller:
    @property
    def topic(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def empty(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        device: Device | None = "cpu",
    ) -> Tensor: ...
    def zeros(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        device: Device | None = "cpu",
    ) -> Tensor: ...
    @overload
    def empty_like(self, tensor: TensorLike, *, device: Device | None = "cpu") -> Tensor: ...
    @overload
    def empty_like(
        self, tensor: dict[str, _T], *, device: Device | None = "cpu"
    ) -> dict[str, Tensor]: ...
    def call(
        self,
        tensors: MessageLike,
        *,
        meta: Meta | None = None,
        strict: bool = False,
        share: bool = False,
        stream: Stream = None,
        stage: bool = False,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Message: ...
    def call_async(
        self,
        tensors: MessageLike,
        *,
        meta: Meta | None = None,
        strict: bool = False,
        share: bool = False,
        stream: Stream = None,
        stage: bool = False,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> Coroutine[object, object, Message]: ...
    def _begin(
        self,
        tensors: MessageLike,
        *,
        meta: Meta | None = None,
        strict: bool = False,
        share: bool = False,
        stream: Stream = None,
        stage: bool = False,
        timeout: float | None = None,
        idempotent: bool = False,
    ) -> int: ...
    def _take(self) -> tuple[int, Message | BaseException] | None: ...
    def _cancel(self, call: int, /) -> None: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def fileno(self) -> int: ...
    def stats(self) -> CallerStats: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Service(Iterator[Request], AsyncIterator[Request]):
    @property
    def timeout(self) -> float | None: ...
    @property
    def topic(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    def take(self, timeout: float | None = ..., *, stream: Stream = None) -> Request: ...
    def take_async(
        self, timeout: float | None = ..., *, stream: Stream = None
    ) -> Coroutine[object, object, Request]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Request: ...
    def __aiter__(self) -> Self: ...
    def __anext__(self) -> Coroutine[object, object, Request]: ...
    def fileno(self) -> int: ...
    def stats(self) -> ServiceStats: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Request:
    @property
    def message(self) -> Message: ...
    @property
    def deadline(self) -> float | None: ...
    @property
    def cancelled(self) -> bool: ...
    @property
    def answered(self) -> bool: ...
    @property
    def released(self) -> bool: ...
    @property
    def meta(self) -> dict[str, MaybeNone] | MaybeNone: ...
    @property
    def names(self) -> list[str | None]: ...
    @property
    def tensors(self) -> list[Tensor]: ...
    @property
    def topic(self) -> str: ...
    def empty(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        device: Device | None = "cpu",
    ) -> Tensor: ...
    def zeros(
        self,
        shape: int | Sequence[int],
        dtype: DTypeLike = "float32",
        *,
        device: Device | None = "cpu",
    ) -> Tensor: ...
    @overload
    def empty_like(self, tensor: TensorLike, *, device: Device | None = "cpu") -> Tensor: ...
    @overload
    def empty_like(
        self, tensor: dict[str, _T], *, device: Device | None = "cpu"
    ) -> dict[str, Tensor]: ...
    def reply(
        self,
        tensors: MessageLike,
        *,
        meta: Meta | None = None,
        strict: bool = False,
        share: bool = False,
        stream: Stream = None,
        stage: bool = False,
    ) -> None: ...
    def error(self, text: str, code: int = 0) -> None: ...
    def release(self) -> None: ...
    def __getitem__(self, key: str | int, /) -> Tensor: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray: ...
    def __dlpack__(
        self,
        *,
        stream: Stream = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

@final
class Connection:
    @property
    def closed(self) -> bool: ...
    def publisher(
        self,
        topic: str,
        *,
        history: int = 0,
        on_full: Literal["drop", "block"] | None = None,
        depth: int | None = None,
        retain: int = 0,
        retain_for: float | Literal["latched"] | None = None,
        timeout: float | None = None,
        max_held: int = 0,
        max_held_bytes: int = 0,
        require: int = 0,
        groups: Iterable[str] = (),
    ) -> Publisher: ...
    def subscribe(
        self,
        topic: str,
        *,
        latest: bool = False,
        history: int | None = 0,
        reliable: bool = False,
        accepts_unreliable: bool = False,
        max_held: int | None = None,
        timeout: float | None = None,
        stay: bool | None = None,
        publishers: int | None = None,
        spin: float | Literal["never", "always"] | None = None,
        pin: Device | None = None,
        stream_timeout: float | None = None,
        kernels_loaded: bool = False,
        private: bool = False,
        device: Device | None = None,
        group: str | None = None,
        lease: float | None = None,
        max_attempts: int | None = None,
        dead_letters: str | None = None,
    ) -> Subscription: ...
    def caller(
        self,
        topic: str,
        *,
        max_in_flight: int | None = None,
        spin: float | Literal["never", "always"] | None = None,
    ) -> Caller: ...
    def serve(
        self,
        topic: str,
        *,
        max_held: int | None = None,
        timeout: float | None = None,
        spin: float | Literal["never", "always"] | None = None,
    ) -> Service: ...
    def get(self, topic: str, timeout: float | None = 0, *, stream: Stream = None) -> Message: ...
    def drop_retained(self, topic: str, /) -> None: ...
    def drop_queue(self, topic: str, /) -> None: ...
    # Functions that the methods above call:
    def _publisher(
        self,
        topic: str,
        history: int,
        blocks: bool,
        depth: int,
        retain: int,
        latched: bool,
        retain_for: float | None,
        timeout: float | None,
        max_held: int,
        max_held_bytes: int,
        require: int,
        groups: tuple[str, ...],
        /,
    ) -> Publisher: ...
    def _subscribe(
        self,
        topic: str,
        latest: bool,
        history: int | None,
        reliable: bool,
        max_held: int,
        timeout: float | None,
        publishers: int | None,
        pin: Device | None,
        stream_timeout: float | None,
        kernels_loaded: bool,
        private: bool,
        device: Device | None,
        group: str | None,
        lease: float | None,
        max_attempts: int | None,
        dead_letters: str | None,
        accepts_unreliable: bool,
        spin: float | None = ...,
        /,
    ) -> Subscription: ...
    def _caller(self, topic: str, max_in_flight: int, spin: float | None = ..., /) -> Caller: ...
    def _serve(
        self, topic: str, max_held: int, timeout: float | None, spin: float | None = ..., /
    ) -> Service: ...
    def observe(
        self, topic: str, *, kinds: Literal["publishers", "subscriptions"] | None = None
    ) -> Observer: ...
    def _observe(self, topic: str, kinds: int, /) -> Observer: ...
    def _get(self, topic: str, timeout: float | None, stream: Stream, /) -> Message: ...
    def publishers(self, topic: str | None = None, /) -> list[PublisherInfo]: ...
    def links(self, publisher: int, /) -> list[LinkInfo]: ...
    def groups(self, topic: str | None = None, /) -> list[GroupInfo]: ...
    def claims(self, publisher: int, group: int, /) -> list[ClaimInfo]: ...
    def daemon(self) -> DaemonInfo: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    timeout: float | None = None,
    autospawn: bool = True,
) -> Connection: ...
def _connect(
    socket: str | os.PathLike[str] | None,
    name: str | None,
    timeout: float | None,
    autospawn: bool,
    /,
) -> Connection: ...
def _dtype_name(dtype: DTypeLike, /) -> str: ...
def tensor(object: TensorLike, /) -> Tensor: ...
def debug(on: bool = True) -> None: ...
def dlpack_info() -> DLPackInfo: ...
def gpu_trim() -> int: ...
def tensor_from_bytes(
    data: bytes, shape: tuple[int, ...], dtype: DTypeLike, padded: bool = False, /
) -> Tensor: ...
