# SPDX-License-Identifier: Apache-2.0
"""Tensors as arrays of NumPy, which is imported only when it is needed."""

from ._errors import DeviceError


def view(tensor):
    """Returns an ndarray of the same memory. Types that NumPy lacks come from ml_dtypes."""
    import numpy as np

    try:
        memory = memoryview(tensor)
    except DeviceError:
        raise
    except BufferError:
        return _extended(np, tensor)
    return np.asarray(memory)


def dtype(name):
    """Returns the numpy.dtype of a name of dlx; TypeError if neither NumPy nor ml_dtypes has it."""
    import numpy as np

    try:
        return np.dtype(str(name))
    except TypeError:
        pass
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError):
        raise TypeError(
            f"NumPy has no data type {name}, nor has the package ml_dtypes, if it is installed"
        ) from None


def _extended(np, tensor):
    if tensor.itemsize not in (1, 2):
        raise TypeError(f"NumPy has no data type {tensor.dtype}")
    return np.asarray(tensor._as_bits()).view(dtype(tensor.dtype))


def array(tensor, dtype=None, copy=None):
    """Implements Tensor.__array__."""
    import numpy as np

    values = view(tensor)
    if dtype is not None and np.dtype(dtype) != values.dtype:
        if copy is False:
            raise ValueError(f"an array of {dtype} needs a copy of {values.dtype}")
        return values.astype(dtype)
    return values.copy() if copy else values
