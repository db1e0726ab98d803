# SPDX-License-Identifier: Apache-2.0
"""Weights in shared memory, once for all processes that use them.

    python -m dlx.weights publish model.safetensors weights/NAME     # they stay when it has ended
    python -m dlx.weights show weights/NAME

    weights = dlx.weights.attach("weights/NAME")                     # in each process
    model.load_state_dict(weights, assign=True)                      # copies nothing

A set of weights is a retained message, as that of `dlxctl pub --retain 1 TOPIC model.safetensors`.
"""

import argparse
import hashlib
import json
import math
import os
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import dlx

if TYPE_CHECKING:
    import torch as _torch

_MOST_HEADER = 100_000_000  # bytes, as in the reference implementation of safetensors
_MOST_METADATA = 65_536  # bytes of a message's metadata: DLX_META_MAX
_PIECE = 1 << 24  # bytes that are read, and then hashed, at once
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


def _read(file: IO[bytes], n: int) -> bytes:
    """Returns n bytes, or those up to the end of the file."""
    data = bytearray()
    while len(data) < n and (piece := file.read(n - len(data))):
        data += piece
    return bytes(data)


def _read_header(file: IO[bytes]) -> tuple[dict[str, Any], int]:
    """Returns the header of a .safetensors file, and where its data begin."""
    size = os.fstat(file.fileno()).st_size
    prefix = _read(file, 8)
    n = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
    if n > min(_MOST_HEADER, size - 8):
        raise ValueError(f"{file.name} is no .safetensors file: its header would be {n} bytes")
    try:
        header = json.loads(_read(file, n))
    except ValueError as e:
        raise ValueError(f"{file.name} is no .safetensors file: {e}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{file.name} is no .safetensors file: its header is no JSON object")
    return header, 8 + n


class _Digest:
    """The fingerprint of a set: of names, types, shapes and bytes, in the order of the names."""

    def __init__(self) -> None:
        self._tensors: dict[str, bytes] = {}

    def begin(self, dtype: str, shape: Sequence[int]) -> Any:
        return hashlib.blake2b(f"{dtype} {list(shape)} ".encode(), digest_size=16)

    def add(self, name: str, hashed: Any) -> None:
        self._tensors[name] = hashed.digest()

    def text(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for name in sorted(self._tensors):
            whole.update(json.dumps(name).encode() + self._tensors[name])
        return f"blake2b-128:{whole.hexdigest()}"


def _entries(file: IO[bytes], header: dict[str, Any]) -> dict[str, Any]:
    """Returns type, shape, and place of each tensor."""
    entries = {}
    for name, about in header.items():
        try:
            first, last = about["data_offsets"]
            entry = str(about["dtype"]), [int(n) for n in about["shape"]], (int(first), int(last))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"{file.name}: tensor {name!r} has no shape, type and place") from None
        if not 0 <= first <= last or min(entry[1], default=0) < 0:
            raise ValueError(f"{file.name}: tensor {name!r} has a negative size or place")
        entries[name] = entry
    return entries


def _metadata(file: IO[bytes], header: dict[str, Any]) -> dict[str, Any]:
    """Takes the file's metadata out of the header."""
    metadata = header.pop("__metadata__", None)
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise ValueError(f"{file.name}: __metadata__ is no JSON object")
    n = len(json.dumps(metadata, ensure_ascii=False).encode(errors="surrogatepass"))
    if n > _MOST_METADATA:
        raise ValueError(
            f"{file.name}: __metadata__ has {n} bytes, and a message has at most {_MOST_METADATA} "
            "bytes of metadata: save the file with less"
        )
    return metadata


def _load(file: IO[bytes], pub: dlx.Publisher, digest: _Digest) -> tuple[dict[str, Any], Any]:
    """Reads the tensors of a file into shared memory; returns them, and the file's metadata."""
    header, start = _read_header(file)
    metadata = _metadata(file, header)
    tensors = {}
    for name, about in sorted(_entries(file, header).items(), key=lambda each: each[1][2]):
        dtype, shape, (first, last) = about
        if dtype not in _DTYPES:
            raise ValueError(f"{file.name}: tensor {name!r} has the type {dtype}, which dlx lacks")
        x = pub.empty(shape, _DTYPES[dtype])
        if last - first != x.nbytes:
            raise ValueError(
                f"{file.name}: tensor {name!r}, {dtype} {shape}, takes {x.nbytes} bytes, and the "
                f"file has {last - first}"
            )
        hashed = digest.begin(x.dtype, shape)
        file.seek(start + first)
        memory = memoryview(x._as_bytes())
        at = 0
        while at < len(memory):
            with memory[at : at + _PIECE] as piece:
                n = file.readinto(piece)  # type: ignore[attr-defined]
                if not n:
                    raise ValueError(f"{file.name} ends within tensor {name!r}")
                with piece[:n] as read:
                    hashed.update(read)
            at += n
        memory.release()
        digest.add(name, hashed)
        tensors[name] = x
    return tensors, metadata


def _copy(
    state: Mapping[str, "_torch.Tensor"], pub: dlx.Publisher, digest: _Digest
) -> dict[str, dlx.Tensor]:
    import torch

    tensors = {}
    for name, t in state.items():
        x = tensors[name] = pub.empty(tuple(t.shape), t.dtype)
        torch.from_dlpack(x).copy_(t)
        hashed = digest.begin(x.dtype, x.shape)
        with memoryview(x._as_bytes()) as memory:
            hashed.update(memory)
        digest.add(name, hashed)
    return tensors


def content(state: Mapping[str, "_torch.Tensor"]) -> str:
    """Returns the fingerprint of a state dict, which is that of the same weights in a file.
    Raises what PyTorch raises for a tensor that has no bytes, such as one on "meta"."""
    import torch

    digest = _Digest()
    for name, t in state.items():
        hashed = digest.begin(str(t.dtype).removeprefix("torch."), t.shape)
        t = t.detach().resolve_conj().resolve_neg().cpu().contiguous()
        hashed.update(t.reshape(-1).view(torch.uint8).numpy())
        digest.add(name, hashed)
    return digest.text()


def publish(
    source: str
    | os.PathLike[str]
    | Sequence[str | os.PathLike[str]]
    | Mapping[str, "_torch.Tensor"],
    topic: str,
    *,
    socket: str | os.PathLike[str] | None = None,
) -> dict[str, str]:
    """Publishes weights, which replace those on the topic, and stay when this process has ended.
    Processes that have attached the former ones keep them; their memory is freed when the last of
    these lets go. Returns the fingerprint, which travels as metadata.

    source  the path of a .safetensors file, or of several that make one set; or a state dict
    socket  path of the daemon's socket; None: as for dlx.connect()

    Raises OSError, ValueError (it is no .safetensors file, or has what a message cannot have), and
    what connect(), publisher() and publish() raise.
    """
    digest, tensors = _Digest(), dict[str, dlx.Tensor]()
    meta: dict[str, str] = {}
    with dlx.connect(socket) as c, c.publisher(topic, history=1, retain=1, depth=1) as pub:
        if isinstance(source, Mapping):
            tensors, said = _copy(source, pub, digest), f"state dict of process {os.getpid()}"
        else:
            paths = [source] if isinstance(source, (str, os.PathLike)) else list(source)
            for path in paths:
                with open(path, "rb", buffering=0) as file:
                    more, metadata = _load(file, pub, digest)
                twice = sorted(tensors.keys() & more.keys())
                if twice:
                    raise ValueError(f"{os.fspath(path)}: tensor {twice[0]!r} is in two files")
                tensors.update(more)
                meta.update({str(key): str(value) for key, value in metadata.items()})
            said = " ".join(os.path.abspath(path) for path in paths)
        about = {
            "fingerprint.content": digest.text(),
            "fingerprint.source": said,
            "fingerprint.dtype": " ".join(sorted({x.dtype for x in tensors.values()})),
        }
        pub.publish(tensors, meta=meta | about, strict=True)
    return about


class Weights(dict[str, "_torch.Tensor"]):
    """A state dict of one version of weights. Its tensors are read-only, and a write to one ends
    the process, unless they were attached with copy=True. They stay as long as one of them does.

    meta         the metadata, with what the file itself had
    fingerprint  the keys "content", "source" and "dtype"; empty if another program published them
    version      tells this version from others of the topic
    """

    def __init__(self, message: dlx.Message, copy: bool) -> None:
        import torch

        if not isinstance(message, dlx.NamedMessage):
            raise ValueError(f"topic {message.topic} has no weights: its message has no names")
        super().__init__(
            (name, torch.from_dlpack(message.private(name) if copy else t))
            for name, t in zip(message.names, message.tensors, strict=True)
            if name is not None
        )
        self.meta: dict[str, Any] = message.meta if isinstance(message.meta, dict) else {}
        begin = "fingerprint."
        self.fingerprint = {
            key.removeprefix(begin): value
            for key, value in self.meta.items()
            if key.startswith(begin)
        }
        self.topic, self.version = message.topic, (message.publisher, message.seq)


def attach(
    topic: str,
    *,
    timeout: float | None = 0,
    copy: bool = False,
    socket: str | os.PathLike[str] | None = None,
) -> Weights:
    """Returns the newest weights of a topic, as a state dict whose tensors are the shared memory:
    model.load_state_dict(weights, assign=True) copies nothing.

    timeout  seconds to wait for the first weights (dlx.Timeout); None: without a limit
    copy     tensors may be written to, which no other process sees: a page is copied when it is
             first written to, and a tensor under 256 KiB at once
    socket   path of the daemon's socket; None: as for dlx.connect()

    Raises ValueError (the message has no names), and what connect() and get() raise.
    """
    with dlx.connect(socket) as c:
        return Weights(c.get(topic, timeout), copy)


def versions(
    topic: str,
    *,
    timeout: float | None = None,
    copy: bool = False,
    socket: str | os.PathLike[str] | None = None,
) -> Iterator[Weights]:
    """Yields the weights of a topic, and each newer version when it is there, or the newest of
    several. A version stays whole while one of its tensors is in use, beside the next one.

    timeout  seconds to wait for a newer version (dlx.Timeout); None: without a limit
    copy     as for attach()
    socket   path of the daemon's socket; None: as for dlx.connect()

    Raises ValueError (a message has no names), and what connect(), subscribe() and take() raise.
    """
    with (
        dlx.connect(socket) as c,
        c.subscribe(topic, latest=True, stay=True, timeout=timeout) as sub,
    ):
        for message in sub:
            weights = Weights(message, copy)
            del message
            yield weights
            del weights


def _show(topic: str, socket: str | None) -> None:
    with dlx.connect(socket) as c:
        message = c.get(topic)
        meta = message.meta if isinstance(message.meta, dict) else {}
        for key in ("content", "source", "dtype"):
            print(f"{key}: {meta.get(f'fingerprint.{key}', '?')}")
        n = sum(math.ceil(t.nbytes) for t in message.tensors)
        print(f"tensors: {len(message.tensors)}, {n} bytes")


def main() -> None:
    p = argparse.ArgumentParser(prog="python -m dlx.weights", description=__doc__.split("\n")[0])
    p.add_argument("--socket", help="path of the daemon's socket")
    commands = p.add_subparsers(dest="command", required=True)
    one = commands.add_parser("publish", help="publish .safetensors files as one set of weights")
    one.add_argument("file", nargs="+")
    one.add_argument("topic")
    commands.add_parser("show", help="tell what is on a topic").add_argument("topic")
    o = p.parse_args()
    try:
        if o.command == "show":
            _show(o.topic, o.socket)
        else:
            for key, value in publish(o.file, o.topic, socket=o.socket).items():
                print(f"{key.removeprefix('fingerprint.')}: {value}")
    except (dlx.Error, OSError, ValueError) as e:
        sys.exit(f"dlx.weights: {e}")


if __name__ == "__main__":
    main()
