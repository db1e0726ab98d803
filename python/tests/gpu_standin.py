# SPDX-License-Identifier: Apache-2.0
"""For the processes of test_gpu.py: GPUs of the stand-in driver (tests/gpu/standin) by ctypes.
Memory of cudaMalloc with __dlpack__, streams, kernels in Python, what came by DLPack, and what the
stand-in counts."""

import ctypes as C
import gc
import os
import threading

import dlx
from dlpack_abi import *  # noqa: F403
from dlpack_abi import DELETER, Legacy, Tensor, Versioned, api, is_valid, new_capsule, pointer_of

PATIENCE = 60.0
cuda = C.CDLL(os.environ["STANDIN"], C.RTLD_GLOBAL)  # libdlx finds it by its name
KINDS = {True: Versioned, False: Legacy}
api.PyCapsule_SetName.argtypes = [C.c_void_p, C.c_char_p]


def ok(result):
    assert result == 0, f"CUDA error {result}"


# ---- counts ----

cuda.standin_count.restype = cuda.standin_calls.restype = cuda.standin_contexts_made.restype = (
    C.c_uint64
)
cuda.standin_count_name.restype = C.c_char_p
COUNTERS = {}
while (name := cuda.standin_count_name(len(COUNTERS))) and name.decode() not in COUNTERS:
    COUNTERS[name.decode()] = len(COUNTERS)
LIVE = list(COUNTERS)[: list(COUNTERS).index("CALLS_MADE")]
BAD = [
    "FREED_WHILE_OPEN",
    "USED_AFTER_REVOKE",
    "UNMAPPED_IN_USE",
    "UNMAPPED_REGISTERED",
    "CALLS_IN_CALLBACK",
    "CALLS_AFTER_FORK",
    "CAPTURES_BROKEN",
]


def count(name):
    return cuda.standin_count(COUNTERS[name])


def calls(name):
    return cuda.standin_calls(name.encode())


def live():
    return {name: count(name) for name in LIVE if count(name)}


# ---- driver ----


def start(device=0):
    """A current context, which finish() releases."""
    context = C.c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(C.byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
    start.devices.append(device)


start.devices = []


def finish():
    """Nothing is left."""
    gc.collect()
    cuda.cuCtxSetCurrent(None)
    while start.devices:
        ok(cuda.cuDevicePrimaryCtxRelease_v2(start.devices.pop()))
    assert not live(), live()
    assert not [name for name in BAD if count(name)], [name for name in BAD if count(name)]
    assert cuda.standin_open_fds() == 0


class Stream:
    """A stream of its own, that does not wait for the default stream. `handle` is an int."""

    def __init__(self):
        at = C.c_void_p()
        ok(cuda.cuStreamCreate(C.byref(at), 1))
        self.handle = at.value

    def close(self):
        ok(cuda.cuStreamDestroy_v2(C.c_void_p(self.handle)))


KERNEL = C.CFUNCTYPE(None, C.c_void_p)
kernels = []  # the driver calls them


def launch(stream, function):
    """A kernel: function() in the stream's thread."""
    kernels.append(KERNEL(lambda unused: function()))
    ok(cuda.standin_launch(C.c_void_p(stream), kernels[-1], None))


class Gate:
    """Work that is queued on the stream after the gate waits until the gate opens."""

    def __init__(self, stream):
        self.event, self.passed = threading.Event(), False
        launch(stream, self.wait)

    def wait(self):
        self.passed = self.event.wait(PATIENCE)

    def open(self):
        self.event.set()


def read(address, n):
    values = (C.c_uint32 * n)()
    ok(cuda.cuMemcpyDtoH_v2(values, C.c_uint64(address), C.c_size_t(4 * n)))
    return list(values)


# ---- a library of GPUs ----


class Memory:
    def __init__(self, n_bytes):
        at = C.c_uint64()
        ok(cuda.cuMemAlloc_v2(C.byref(at), C.c_size_t(n_bytes)))
        self.at = at.value

    def __del__(self):
        ok(cuda.cuMemFree_v2(C.c_uint64(self.at)))


exports = {}  # managed tensors that were handed out, by address


def _delete(address):
    _, array = exports.pop(address)
    array.deleted += 1


DELETE = DELETER(_delete)


@DELETER
def end_capsule(capsule):
    for kind in KINDS.values():
        if is_valid(capsule, kind.NEW):
            _delete(pointer_of(capsule, kind.NEW))


class Array:
    """Elements of uint32, all of this value. `asked` has the arguments of __dlpack__, `deleted` the
    number of exports that have ended.
    """

    def __init__(self, *shape, value=0, versioned=True, memory=None, offset=0, device=(2, 0)):
        self.shape, self.versioned, self.device = (
            (C.c_int64 * len(shape))(*shape),
            versioned,
            device,
        )
        self.n, self.asked, self.deleted, self.offset = 1, [], 0, offset
        for extent in shape:
            self.n *= extent
        self.memory = memory or Memory(4096)
        values = (C.c_uint32 * self.n)(*[value] * self.n)
        if self.n:  # a memset would still be going on
            ok(
                cuda.cuMemcpyHtoD_v2(
                    C.c_uint64(self.memory.at + offset), values, C.c_size_t(4 * self.n)
                )
            )

    def __dlpack_device__(self):
        return self.device

    def managed(self):
        """The address of a managed tensor, the caller's."""
        at = self.memory.at if self.n else None
        t = Tensor(at, self.device, len(self.shape), 1, 32, 1, self.shape, None, self.offset)
        made = Versioned((1, 0), None, DELETE, 0, t) if self.versioned else Legacy(t, None, DELETE)
        exports[C.addressof(made)] = made, self
        return C.addressof(made)

    def __dlpack__(self, **kwargs):
        self.asked.append(kwargs)
        if not self.versioned and "max_version" in kwargs:
            raise TypeError("an unexpected keyword argument 'max_version'")
        return new_capsule(self.managed(), KINDS[self.versioned].NEW, end_capsule)


class Taken:
    """The tensor that an object of another library exports by __dlpack__."""

    def __init__(self, thing, **kwargs):
        capsule = thing.__dlpack__(**{"max_version": (1, 0), **kwargs})
        self.versioned = bool(is_valid(id(capsule), Versioned.NEW))
        kind = KINDS[self.versioned]
        self.at = pointer_of(id(capsule), kind.NEW)
        api.PyCapsule_SetName(id(capsule), kind.USED)
        self.managed = kind.from_address(self.at)
        self.t, self.device = self.managed.t, tuple(self.managed.t.device)

    def values(self):
        n = 1
        for i in range(self.t.ndim):
            n *= self.t.shape[i]
        return read(self.t.data + self.t.byte_offset, n)

    def close(self):
        self.managed.deleter(self.at)  # without the GIL, as every call of ctypes


def waits(release):
    """The work that release() waits for: how often it waits for the device, and how many streams it
    checks.
    """
    before = calls("cuCtxSynchronize"), calls("cuStreamIsCapturing")
    release()
    return calls("cuCtxSynchronize") - before[0], calls("cuStreamIsCapturing") - before[1]


def fill(t, value, stream=1):
    """As torch.from_dlpack(t).fill_(value), on this stream."""
    view = Taken(t, stream=stream)
    ok(
        cuda.cuMemsetD32Async(
            C.c_uint64(view.t.data),
            C.c_uint32(value),
            C.c_size_t(t.nbytes // 4),
            C.c_void_p(stream),
        )
    )
    view.close()
    return view.t.data


# ---- memory that libdlx allocates for the allocator of a library ----

lib = C.CDLL(dlx._dlx.__file__)
lib.dlx_cuda_malloc.restype = C.c_void_p
lib.dlx_errmsg.restype = C.c_char_p


def cuda_malloc(size, device=0, stream=None):
    return lib.dlx_cuda_malloc(C.c_ssize_t(size), C.c_int(device), C.c_void_p(stream))


def cuda_free(at, size=0, device=0, stream=None):
    lib.dlx_cuda_free(C.c_void_p(at), C.c_ssize_t(size), C.c_int(device), C.c_void_p(stream))


class Segment:
    """In the place of Memory."""

    def __init__(self, size=4 << 20, device=0):
        self.at = cuda_malloc(size, device)
        assert self.at, lib.dlx_errmsg()

    def __del__(self):
        cuda_free(self.at)


def used():
    """Bytes of the GPU that all processes of the machine have."""
    free, total = C.c_size_t(), C.c_size_t()
    ok(cuda.cuMemGetInfo_v2(C.byref(free), C.byref(total)))
    return total.value - free.value
