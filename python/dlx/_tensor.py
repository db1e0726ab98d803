# SPDX-License-Identifier: Apache-2.0
"""Methods of dlx.Tensor that need no C. A tensor is array-like, but computes nothing."""

import math
import operator

from . import _html, _picture, _torch
from ._dlx import Tensor, tensor_from_bytes
from ._dtype import DType

_SHOWN = 6  # elements in repr()
_name = Tensor.dtype
_plain_repr = Tensor.__repr__


def _pick(key, extent, axis):
    """Returns the first element, and of a slice the number of elements and the step, else None."""
    if isinstance(key, slice):
        picked = range(*key.indices(extent))
        return picked.start if picked else 0, len(picked), picked.step
    if isinstance(key, bool):
        raise TypeError("tensors are not indexed by masks: t.numpy()[mask]")
    try:
        i = operator.index(key)
    except TypeError:
        raise TypeError(
            f"tensors are indexed by int, slice, None and ..., not {type(key).__name__}: "
            f"t.numpy()[key]"
        ) from None
    if not -extent <= i < extent:
        raise IndexError(f"index {i} of axis {axis}, whose extent is {extent}")
    return i % extent, None, None


class Methods:
    """Methods that add() gives to Tensor."""

    @property
    def dtype(self):
        """The data type, a dlx.DType: a str that also equals np.float32 or torch.float32."""
        return DType(_name.__get__(self))

    @property
    def size(self):
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def __numpy_dtype__(self):
        from . import _numpy

        return _numpy.dtype(self.dtype)

    def tobytes(self):
        """Its elements as bytes, row-major, in native byte order."""
        return bytes(self._as_bytes())

    def __reduce__(self):
        """Pickled by value: what is unpickled is a private, writable copy."""
        return self.__reduce_ex__(4)

    def __reduce_ex__(self, protocol, /):
        """As __reduce__(). From protocol 5 on its memory is a pickle.PickleBuffer: nothing is
        copied for it, and with a buffer_callback nothing at all.
        """
        if protocol < 5:
            data = self.tobytes()
        else:
            from pickle import PickleBuffer

            data = PickleBuffer(self._as_bytes())
        return tensor_from_bytes, (data, self.shape, _name.__get__(self), self._is_padded)

    def numpy(self):
        """Returns a numpy.ndarray of the same memory, read-only if the tensor is.

        Types that NumPy lacks (bfloat16, float8) come from the package ml_dtypes; without it they
        raise TypeError. A tensor on a GPU raises dlx.DeviceError.
        """
        from . import _numpy

        return _numpy.view(self)

    def torch(self):
        """Returns torch.from_dlpack(self), which has the same memory.

        PyTorch ignores that a received tensor is read-only, and a write to it ends the process. To
        write, use msg.private(key).
        """
        from torch import from_dlpack

        return from_dlpack(self)

    def __array__(self, dtype=None, copy=None):
        from . import _numpy

        return _numpy.array(self, dtype, copy)

    def __arrow_array__(self, type=None):
        from pyarrow import array

        return array(self.numpy(), type=type)

    def tolist(self):
        """Returns the elements as Python numbers, in nested lists.

        Types that the buffer protocol lacks (float16, complex, bfloat16) need NumPy.
        """
        try:
            return memoryview(self).tolist()
        except (BufferError, NotImplementedError):
            return self.numpy().tolist()

    def item(self):
        """Returns the only element as a Python number. ValueError if there is not exactly one."""
        if self.size != 1:
            raise ValueError(
                f"item() is for a tensor of one element, and this one has the shape {self.shape}"
            )
        value = self.tolist()
        while isinstance(value, list):
            value = value[0]
        return value

    def __getitem__(self, key):
        keys = list(key) if isinstance(key, tuple) else [key]
        old_shape, old_strides = self.shape, self.strides
        missing = len(old_shape) - sum(k is not None and k is not ... for k in keys)
        n_dots = sum(k is ... for k in keys)
        if missing < 0 or n_dots > 1:
            raise IndexError(
                f"{len(keys)} indices ({n_dots} of them '...') for a tensor of {len(old_shape)} "
                f"dimensions"
            )
        at = next((i for i, k in enumerate(keys) if k is ...), len(keys))
        keys[at : at + 1] = [slice(None)] * missing
        offset, shape, strides, axis = 0, [], [], 0
        for k in keys:
            if k is None:
                shape.append(1)
                strides.append(None)
                continue
            first, n, step = _pick(k, old_shape[axis], axis)
            offset += first * old_strides[axis]
            if n is not None:
                shape.append(n)
                strides.append(step * old_strides[axis])
            axis += 1
        for i in reversed(range(len(shape))):  # as PyTorch has it: conv2d looks at it
            if strides[i] is None:
                strides[i] = shape[i + 1] * strides[i + 1] if i + 1 < len(shape) else 1
        return self._view(offset, tuple(shape), tuple(strides))

    def __setitem__(self, key, value):
        if self.readonly:
            raise ValueError(_torch.READ_ONLY)
        self.numpy()[key] = value  # the array is gone again, so publish() need not copy

    def __iter__(self):
        n = len(self)
        return (self[i] for i in range(n))

    def __bool__(self):
        return bool(self.item())

    def __int__(self):
        return int(self.item())

    def __float__(self):
        return float(self.item())

    def __complex__(self):
        return complex(self.item())

    def __repr__(self):
        text = _plain_repr(self)
        try:
            row = self[(0,) * (self.ndim - 1)] if self.ndim > 1 else self
            values = memoryview(row[:_SHOWN] if row.ndim else row).tolist()
        except Exception:  # there is nothing to show, or it is not readable here
            return text
        more = ", ..." if self.size > _SHOWN or row.size != self.size else ""
        shown = f"{values}" if not isinstance(values, list) else f"{str(values)[:-1]}{more}]"
        return f"{text[:-1]}: {shown}>"

    def _repr_html_(self):
        """Returns a table for notebooks, and the picture, if there is one."""
        title = _plain_repr(self).strip("<>")
        if self.published:
            return _html.table(title, [])
        rows = [("", self.dtype, self.shape, self.nbytes)]
        return _html.table(title, rows) + _html.pictures([self])

    def _repr_png_(self):
        """Returns the picture as a PNG file, or None."""
        pixels = None if self.published else _picture.pixels(self)
        return None if pixels is None else _picture.png(pixels)


def add(methods, cls):
    """Adds what the class `methods` defines to a type of the extension."""
    for name, member in vars(methods).items():
        if name not in ("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__"):
            setattr(cls, name, member)


add(Methods, Tensor)
add(_torch.Methods, Tensor)
