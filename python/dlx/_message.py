# SPDX-License-Identifier: Apache-2.0
"""A message behaves like what was published: a tensor, a sequence, or, with names, a mapping."""

from collections.abc import Mapping

from . import _html, _meta, _torch, _tree
from ._dlx import Message, NamedMessage, Tensor, TreeMessage
from ._errors import NotFound
from ._tensor import add

_MOST = 5  # tensors that repr() describes


class _Borrowed:
    """An attribute that only some messages have; hasattr() tells which."""

    def __init__(self, name, doc):
        self.name, self.__doc__ = name, doc


class _OfTheTensor(_Borrowed):
    """An attribute of the one tensor of a message without names."""

    def __get__(self, message, cls=None):
        if message is None:
            return self
        n = len(message.names)
        if type(message) is Message and n == 1:
            return getattr(message[0], self.name)
        holds = "named tensors" if type(message) is not Message else f"{n} tensors"
        raise AttributeError(
            f"a message of {holds} has no {self.name}: take that of one of them, as "
            f"msg[key].{self.name}"
        )


class _OfNames(_Borrowed):
    """A method that only messages with names have."""

    def __get__(self, message, cls=None):
        if message is None:
            return self
        raise AttributeError(
            f"a message without names has no {self.name}(): it is a sequence of tensors"
        )


def _rows(message):
    """Returns key, data type, shape and bytes of each tensor."""
    return [
        (i if name is None else name, *spec)
        for i, (name, spec) in enumerate(zip(message.names, message._specs(), strict=True))
    ]


def _title(message):
    if message.released:
        return f"dlx.{type(message).__name__}, released"
    return f"dlx.{type(message).__name__} topic={message.topic} seq={message.seq}"


def _only_one(message):
    if len(message.names) != 1:
        raise TypeError(
            f"a message of {len(message.names)} tensors is no number: name the one that is meant, "
            f"as msg[key]"
        )
    return message.tensors[0]


class Methods:
    """Methods of every Message."""

    @property
    def meta(self):
        """The metadata as publish() got them: a dict, bytes, or None. JSON of other programs is a
        dict.
        """
        return _meta.decode(self.meta_bytes)

    def __reduce__(self):
        raise TypeError(
            "a message is not copied or pickled: pickle its tensors, which copies them, or "
            "publish it"
        )

    def __iter__(self):
        return iter(self.tensors)

    def __int__(self):
        return int(_only_one(self))

    def __float__(self):
        return float(_only_one(self))

    def __complex__(self):
        return complex(_only_one(self))

    def __array__(self, dtype=None, copy=None):
        n = len(self.names)
        if n != 1:  # without this method, NumPy would make an array of one object
            raise BufferError(
                f"a message of {n} tensors: name the one that is meant, as msg[name] or msg[0]"
            )
        return self.tensors[0].__array__(dtype, copy)

    def __repr__(self):
        if self.released:
            return f"<{_title(self)}>"
        rows = _rows(self)
        texts = [
            f"{dtype} {shape}" if type(self) is Message else f"{key!r} {dtype} {shape}"
            for key, dtype, shape, _ in rows[:_MOST]
        ]
        if len(rows) > _MOST:
            texts.append(f"and {len(rows) - _MOST} more")
        return f"<{_title(self)}: {', '.join(texts)}>"

    def _repr_html_(self):
        """Returns a table for notebooks, and pictures of the first tensors that have one."""
        if self.released:
            return _html.table(_title(self), [])
        return _html.table(_title(self), _rows(self)) + _html.pictures(self.tensors)


class NamedMethods:
    """Methods of a NamedMessage."""

    get, keys, values, items = Mapping.get, Mapping.keys, Mapping.values, Mapping.items

    def __iter__(self):
        return iter([i if name is None else name for i, name in enumerate(self.names)])

    def __contains__(self, key):
        if not isinstance(key, str):
            return isinstance(key, int) and 0 <= key < len(self) and self.names[key] is None
        try:
            return "\0" not in key and self[key] is not None
        except (NotFound, UnicodeError):
            return False


add(Methods, Message)
add(_torch.Methods, Message)
for _name in (
    "shape",
    "strides",
    "ndim",
    "size",
    "dtype",
    "itemsize",
    "nbytes",
    "device",
    "readonly",
    "numpy",
    "torch",
    "tolist",
    "item",
    "tobytes",
    "as_legacy",
    "__numpy_dtype__",
    "__arrow_array__",
):
    setattr(Message, _name, _OfTheTensor(_name, getattr(Tensor, _name).__doc__))
for _name in ("get", "keys", "values", "items"):
    setattr(Message, _name, _OfNames(_name, getattr(Mapping, _name).__doc__))
add(NamedMethods, NamedMessage)
add(_tree.Methods, TreeMessage)
Mapping.register(NamedMessage)
