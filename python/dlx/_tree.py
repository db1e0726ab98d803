# SPDX-License-Identifier: Apache-2.0
"""Nested dicts, lists and tuples of tensors and scalars, as one flat set of named tensors and back.

The name of a tensor is the path to it, such as "opt/m/0". As in JSON pointers, "~" in a key is
written "~0", and "/" is "~1". The metadata have what names do not tell: {"dlx.tree": REST, "meta":
...}, where "meta" is the publisher's own metadata. REST is the nested object in the JSON of
_meta.py, without tensors, and without dicts that contain only tensors. A list or tuple with tensors
in it is an object {"dlx.list": {"1": ...}} with numbers as keys.
"""

import contextlib
from collections.abc import Mapping

from . import _meta
from ._dlx import Message
from ._errors import InvalidError, NotFound

_tensor_of = Message.__getitem__
_TENSOR = object()  # there is nothing to say: a tensor, or a dict of tensors


def _escape(key):
    return str(key).replace("~", "~0").replace("/", "~1")


def _unescape(part):
    return part.replace("~1", "/").replace("~0", "~")


def _children(value, path):
    """Returns the kind and the pairs of a container; None for anything else."""
    if isinstance(value, Mapping) and not hasattr(value, "__dlpack__"):
        kind = _meta.dict_kind(value.keys(), f"names of tensors are str: {path or 'the message'}")
        if "" in value:
            raise ValueError(f"{path or 'the message'}: an empty key in a nested dict")
        return kind, value.items()
    if isinstance(value, (list, tuple)):
        return "dlx.list" if isinstance(value, list) else "dlx.tuple", enumerate(value)
    return None, ()


def _flatten(value, path, tensors):
    """Adds the tensors of `value` to `tensors`, by name, and returns the rest."""
    kind, children = _children(value, path)
    if kind is None:
        if value is None or isinstance(value, str) or type(value) in (bool, int):
            return value
        if type(value) is complex:
            return {"dlx.complex": [value.real, value.imag]}
        if type(value) is float:
            return value if abs(value) < float("inf") else {"dlx.float": repr(value)}
        tensors[path] = value
        return _TENSOR
    n = len(tensors)
    rest = {}
    for key, each in children:
        part = _escape(key)
        rest[str(key)] = _flatten(each, f"{path}/{part}" if path else part, tensors)
    has_tensors = len(tensors) > n
    if has_tensors and kind == "dlx.dict" and all(each is _TENSOR for each in rest.values()):
        return _TENSOR
    rest = {key: each for key, each in rest.items() if each is not _TENSOR}
    if not has_tensors and kind in ("dlx.list", "dlx.tuple"):
        rest = list(rest.values())
    return _meta.wrap(kind, rest)


def place(tree, name, path="tensors"):
    """Where the tensor of this name is in `tree`: "tensors['opt'][0]"."""
    for part in name.split("/"):
        key, tree = next(
            (key, each) for key, each in _children(tree, path)[1] if _escape(key) == part
        )
        path += f"[{key!r}]"
    return path


def flatten(tree, meta):
    """Returns a flat dict of tensors, and metadata with the structure. `meta`: metadata as bytes,
    or None.
    """
    tensors = {}
    try:
        rest = _flatten(tree, "", tensors)
    except RecursionError:
        raise ValueError("a nested dict without an end, or too deep") from None
    return tensors, _join({} if rest is _TENSOR else rest, meta)


def _join(rest, meta):
    header = {"dlx.tree": rest}
    if meta:
        header["meta"] = _meta.as_json(meta)
    return _meta.dumps(header)


def with_meta(message, meta):
    """Returns the metadata of a TreeMessage that is republished with other metadata."""
    try:
        return _join((_meta.loads(message.meta_bytes) or {}).get("dlx.tree", {}), meta)
    except Exception as e:  # another program's, which looks like ours
        raise InvalidError(
            f"topic {message.topic}: the structure of message {message.seq}, which another program "
            f"wrote, cannot be passed on with other metadata ({e}): publish a dict of its tensors"
        ) from None


def _merge(found, rest):
    """Merges `found`, a tensor or a dict that the names tell, with the rest."""
    if not isinstance(found, dict):
        return found
    kind, inner = _meta.split({} if rest is _TENSOR else rest)
    whole = {key: _merge(each, inner.get(key, _TENSOR)) for key, each in found.items()}
    whole.update((key, _meta.untag(each)) for key, each in inner.items() if key not in whole)
    if kind in ("dlx.int", "dlx.list", "dlx.tuple"):
        whole = {int(key): each for key, each in whole.items()}
    if kind in ("dlx.list", "dlx.tuple"):
        whole = [whole[i] for i in range(len(whole))]
    return tuple(whole) if kind == "dlx.tuple" else whole


def restore(message):
    """Returns what was published, with a dlx.Tensor for each tensor; the flat dict if _join() did
    not make the metadata.
    """
    flat = dict(zip(message.names, message.tensors, strict=True))
    found = {}
    try:
        for name, tensor in flat.items():
            *outer, last = [_unescape(part) for part in name.split("/")]
            at = found
            for part in outer:
                at = at.setdefault(part, {})
            at[last] = tensor
        tree = _merge(found, _meta.loads(message.meta_bytes)["dlx.tree"])
        return tree if isinstance(tree, dict) else flat
    except Exception:  # another program's, which looks like ours: nothing in it is certain
        return flat


class Methods:
    """Methods of a TreeMessage."""

    def __getitem__(self, key):
        if isinstance(key, str):  # a tensor of the outermost dict needs none of the others
            with contextlib.suppress(NotFound, ValueError):
                return _tensor_of(self, _escape(key))
        tree = restore(self)
        if key not in tree:
            at = ""
            with contextlib.suppress(Exception):  # not all trees have a place for all names
                if key in self.names:
                    at = f"; that tensor is {place(tree, key, 'msg')}"
            raise NotFound(
                f"topic {self.topic}: message {self.seq} has no {key!r}; it has "
                f"{', '.join(map(repr, tree))}{at}"
            )
        return tree[key]

    def __iter__(self):
        return iter(restore(self))

    def __len__(self):
        return len(restore(self))

    def __contains__(self, key):
        return key in restore(self)

    def keys(self):
        """Returns the keys of the outermost dict."""
        return restore(self).keys()

    def values(self):
        """Returns tensors, scalars, and dicts, lists and tuples of these."""
        return restore(self).values()

    def items(self):
        """Returns pairs of keys() and values()."""
        return restore(self).items()
