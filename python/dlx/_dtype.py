# SPDX-License-Identifier: Apache-2.0
"""Data types. dlx has objects of its own for them, because DLPack has more types than any library,
and NumPy is optional.
"""

from typing import TYPE_CHECKING

from ._dlx import _dtype_name

if TYPE_CHECKING:
    from ._dlx import DTypeLike


class DType(str):
    """A data type: a str with its name, such as "float32", "bfloat16" or "complex64x2".

    A DType equals that type in every form that dlx reads: t.dtype == np.float32, == torch.float32,
    == "f4", == float. NumPy accepts it like a name: np.zeros(3, t.dtype).
    """

    __slots__ = ()

    def __new__(cls, dtype: "DTypeLike") -> "DType":
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
    def name(self) -> str:
        """The name as a plain str."""
        return str(self)


DType.__module__ = "dlx"
