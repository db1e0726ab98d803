# SPDX-License-Identifier: Apache-2.0
"""Tensors of a library that is written in Python: its C exchange API and its deleters run Python
code.
"""

import ctypes
import sys

import dlx
import pytest
from dlpack_abi import Api, Versioned, api, exchange_api, tensor_of


class Memory:
    """Three bytes, as managed tensors; counts their deleters."""

    def __init__(self):
        self.data, self.shape = (ctypes.c_uint8 * 3)(1, 2, 3), (ctypes.c_int64 * 1)(3)
        self.deleted = []
        self.delete = type(Versioned().deleter)(lambda tensor: self.deleted.append(tensor))
        self.tensors = []

    def tensor(self, version=(1, 0), ndim=1):
        t = Versioned(version=version, deleter=self.delete)
        t.t.data, t.t.device[0], t.t.ndim = ctypes.addressof(self.data), 1, ndim
        t.t.code, t.t.bits, t.t.lanes = 1, 8, 1
        t.t.shape = ctypes.cast(self.shape, type(t.t.shape))
        self.tensors.append(t)
        return t

    def dlx_tensor(self):
        return tensor_of(self.tensor())

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
            # what is on the stack is dropped while the exception is there
            print(make(memory), 1 / 0)
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


def test_the_exchange_api_comes_before_anything_else(pair):
    memory, asked = Memory(), []

    def give(thing, out):
        asked.append(thing)
        out[0] = ctypes.pointer(memory.tensor())
        return 0

    class Thing:
        __dlpack_c_exchange_api__, table = exchange_api(Api.FROM(give))

        def __dlpack__(self, **kwargs):
            raise AssertionError("not to be called")

    pub, sub = pair
    pub.publish(Thing())
    assert sub.take()[0].tobytes() == b"\1\2\3" and len(asked) == len(memory.deleted) == 1


class Throws:
    """A function in C fails as its API: PyObject_Size() returns -1 with what __len__() raises."""

    __dlpack_c_exchange_api__, table = exchange_api(ctypes.cast(api.PyObject_Size, Api.FROM))

    def __init__(self, error):
        self.error = error

    def __len__(self):
        raise self.error


TRACE = "not strided\nException raised from f at x.cpp:3\nframe #0: g\n"


def test_a_tensor_that_the_exchange_api_refuses_may_come_by_dlpack(pair):
    class Gives(Throws, Producer):
        pass

    memory, (pub, sub) = Memory(), pair
    thing = Gives(RuntimeError(TRACE))
    thing.make = memory.capsule
    pub.publish(thing)
    assert sub.take()[0].tobytes() == b"\1\2\3"

    def refuse():
        raise BufferError("sparse tensors have no memory of this kind")

    thing.make = refuse
    with pytest.raises(BufferError, match="sparse"):
        pub.publish(thing)


@pytest.mark.parametrize(
    "error, expected",
    [
        (RuntimeError(TRACE), BufferError),
        (ValueError("no\nsuch"), BufferError),
        (ValueError(""), BufferError),
        (BufferError("a"), BufferError),
        (TypeError("b"), TypeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_refusal_of_the_exchange_api_alone_is_told_in_one_line(pair, error, expected):
    with pytest.raises(expected) as e:
        pair[0].publish(Throws(error))
    assert type(e.value) is expected and len(str(e.value).splitlines()) < 2
    assert not str(error) or str(error).splitlines()[0] in str(e.value)


def test_a_device_that_is_refused_is_a_buffer_error(pair):
    class Meta(Producer):
        def __dlpack_device__(self):
            raise ValueError("Unknown device type meta")

    with pytest.raises(BufferError, match="Unknown device type meta"):
        pair[0].publish(Meta(None))
