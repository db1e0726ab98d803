# SPDX-License-Identifier: Apache-2.0
"""Data types as objects of their own, since DLPack has more of them than any library, and NumPy need not be there."""
from ._dlx import _dtype_name


class DType(str):
    """A data type: its name ("float32", "bfloat16", "complex64x2"), which equals that type in any form that dlx reads:
    t.dtype == np.float32, == torch.float32, == "f4", == float. NumPy takes it where it takes a name: np.zeros(3, t.dtype)."""

    __slots__ = ()

    def __new__(cls, dtype):
        return str.__new__(cls, _dtype_name(dtype))

    def __eq__(self, other):
        if type(other) is DType:
            return str.__eq__(self, other)
        try:
            return str.__eq__(self, _dtype_name(other))
        except TypeError:
            return NotImplemented

    def __ne__(self, other):
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = str.__hash__

    def __repr__(self):
        return f"dlx.DType({str(self)!r})"

    @property
    def name(self):
        """The same, as a str."""
        return str(self)


DType.__module__ = "dlx"
