# SPDX-License-Identifier: Apache-2.0
"""Tensors as arrays of NumPy, which is imported only when it is asked for."""
from ._errors import DeviceError


def view(tensor):
    """An ndarray of the same memory. Types that NumPy does not have come from ml_dtypes."""
    import numpy as np
    try:
        memory = memoryview(tensor)
    except DeviceError:
        raise
    except BufferError:
        return _extended(np, tensor)
    return np.asarray(memory)


def _extended(np, tensor):
    bits = tensor.itemsize * 8
    if bits not in (8, 16):
        raise TypeError(f"NumPy has no data type {tensor.dtype}")
    try:
        import ml_dtypes
        dtype = np.dtype(getattr(ml_dtypes, tensor.dtype))
    except (ImportError, AttributeError):
        raise TypeError(f"NumPy has no data type {tensor.dtype}, nor has the package ml_dtypes, if it is "
                        "installed") from None
    return np.asarray(tensor._as_bits()).view(dtype)


def array(tensor, dtype=None, copy=None):
    """Tensor.__array__."""
    import numpy as np
    values = view(tensor)
    if dtype is not None and np.dtype(dtype) != values.dtype:
        if copy is False:
            raise ValueError(f"an array of {dtype} needs a copy of {values.dtype}")
        return values.astype(dtype)
    return values.copy() if copy else values
