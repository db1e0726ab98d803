# SPDX-License-Identifier: Apache-2.0
"""Tensors of a library that is written in Python: its C exchange API and its deleters run Python code."""
import ctypes
import sys

import pytest
from test_out import Api, Versioned, api

import dlx

api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Memory:
    """Three bytes, as managed tensors; counts their deleters."""

    def __init__(self):
        self.data, self.shape, self.deleted = (ctypes.c_uint8 * 3)(1, 2, 3), (ctypes.c_int64 * 1)(3), []
        self.delete = type(Versioned().deleter)(lambda tensor: self.deleted.append(tensor))
        self.tensors = []

    def tensor(self, version=(1, 0), ndim=1):
        t = Versioned(version=version, deleter=self.delete)
        t.t.data, t.t.device[0], t.t.ndim, t.t.code, t.t.bits, t.t.lanes = ctypes.addressof(self.data), 1, ndim, 1, 8, 1
        t.t.shape = ctypes.cast(self.shape, type(t.t.shape))
        self.tensors.append(t)
        return t

    def dlx_tensor(self):
        back = ctypes.py_object()
        exchange = Api.from_address(api.PyCapsule_GetPointer(dlx.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
        assert exchange.to_object(ctypes.byref(self.tensor()), ctypes.byref(back)) == 0
        ret = back.value
        api.Py_DecRef(back)  # ours, beside that of ctypes
        return ret

    def capsule(self):
        return self.dlx_tensor().__dlpack__(max_version=(1, 0))

    def capsule_legacy(self):
        return self.dlx_tensor().__dlpack__()


@pytest.mark.parametrize("make", [Memory.dlx_tensor, Memory.capsule, Memory.capsule_legacy])
def test_deleters_run_without_the_exception_that_drops_a_tensor(make):
    memory, unraisable = Memory(), []
    sys.unraisablehook, hook = unraisable.append, sys.unraisablehook
    try:
        with pytest.raises(ZeroDivisionError):
            print(make(memory), 1 / 0)  # what is on the stack is dropped while the exception is there
    finally:
        sys.unraisablehook = hook
    assert len(memory.deleted) == 1 and not unraisable


class Producer:
    """Of DLPack alone."""

    def __init__(self, make):
        self.make = make

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **kwargs):
        return self.make()


@pytest.mark.parametrize("make", [Memory.capsule, Memory.capsule_legacy])
def test_deleters_run_without_the_exception_that_refuses_a_message(pair, make):
    memory, unraisable = Memory(), []
    sys.unraisablehook, hook = unraisable.append, sys.unraisablehook
    try:
        with pytest.raises(TypeError, match="no tensor"):
            pair[0].publish([Producer(lambda: make(memory)), object()])
    finally:
        sys.unraisablehook = hook
    assert len(memory.deleted) == 1 and not unraisable
