# SPDX-License-Identifier: Apache-2.0
"""In the place of PyTorch, what examples/engines.py uses of it, on the stand-in driver: tensors on
its GPUs that are copied and read by the driver, and computed with by NumPy."""

import ctypes as C
import threading
import types

import numpy as np
from gpu_standin import Taken, ok
from gpu_standin import cuda as driver

_thread = threading.local()


def _enter():
    """The driver copies in a context of the thread."""
    if not hasattr(_thread, "context"):
        _thread.context = C.c_void_p()
        ok(driver.cuInit(0))
        ok(driver.cuDevicePrimaryCtxRetain(C.byref(_thread.context), 0))
    ok(driver.cuCtxSetCurrent(_thread.context))


class Tensor:
    """In memory of the host, or what an object gave by __dlpack__."""

    def __init__(self, host=None, taken=None):
        self.host, self.taken = host, taken
        self.shape = host.shape if taken is None else tuple(taken.t.shape[: taken.t.ndim])

    def __del__(self):
        if self.taken is not None:
            self.taken.close()

    def __len__(self):
        return self.shape[0]

    def _copy(self, call, host):
        _enter()
        at = C.c_uint64(self.taken.t.data + self.taken.t.byte_offset)
        data, size = C.c_void_p(host.ctypes.data), C.c_size_t(host.nbytes)
        ok(call(at, data, size) if call is driver.cuMemcpyHtoD_v2 else call(data, at, size))

    def numpy(self):
        if self.taken is None:
            return self.host
        host = np.empty(self.shape, np.float32)
        self._copy(driver.cuMemcpyDtoH_v2, host)
        return host

    def copy_(self, other):
        self._copy(driver.cuMemcpyHtoD_v2, np.ascontiguousarray(other.numpy()))

    def to(self, device):
        return self

    def cpu(self):
        return self

    def __matmul__(self, other):
        return Tensor(self.numpy() @ other.numpy())

    def numel(self):
        return int(np.prod(self.shape))

    def element_size(self):
        return 4


def from_numpy(array):
    return Tensor(array)


def from_dlpack(thing):
    taken = Taken(thing, stream=1)
    assert taken.device == (2, 0), taken.device
    return Tensor(taken=taken)


cuda = types.SimpleNamespace(
    current_stream=lambda device: types.SimpleNamespace(cuda_stream=0),
    memory_reserved=lambda device: 0,
)
