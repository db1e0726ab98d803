# SPDX-License-Identifier: Apache-2.0
"""Methods of dlx.Tensor that need no C."""
from . import _html
from ._dlx import Tensor


def numpy(self):
    """A numpy.ndarray of the same memory: read-only if the tensor is. Types that NumPy does not have (bfloat16, float8) are
    those of the package ml_dtypes; TypeError without it. dlx.DeviceError on a GPU."""
    from . import _numpy
    return _numpy.view(self)


def __array__(self, dtype=None, copy=None):
    from . import _numpy
    return _numpy.array(self, dtype, copy)


def _repr_html_(self):
    """A table for notebooks."""
    return _html.table(repr(self).strip("<>"), [] if self.published else [("", self.dtype, self.shape, self.nbytes)])


def add_methods():
    for method in (numpy, __array__, _repr_html_):
        method.__qualname__ = f"Tensor.{method.__name__}"
        setattr(Tensor, method.__name__, method)
