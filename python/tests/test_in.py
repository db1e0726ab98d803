# SPDX-License-Identifier: Apache-2.0
"""Anything in: what can be published, by which protocol, and what is refused in which words."""

import array
import ctypes
import mmap

import dlx
import numpy as np
import pytest

DTYPES = ["bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]


def send(pair, thing, **kwargs):
    pub, sub = pair
    pub.publish(thing, **kwargs)
    return sub.take()[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_numpy(pair, dtype):
    a = (
        np.arange(24).reshape(2, 3, 4) % 2 if dtype == "bool" else np.arange(24).reshape(2, 3, 4)
    ).astype(dtype)
    t = send(pair, a)
    assert t.dtype == dtype and t.shape == a.shape and t.readonly and not t.copied
    b = np.asarray(t)
    assert b.dtype == a.dtype and np.array_equal(a, b) and not b.flags.writeable
    assert np.array_equal(np.asarray(send(pair, t)), a)


LAYOUTS = {
    "scalar": np.float32(3),
    "0-d": np.array(2.5),
    "empty": np.zeros((3, 0, 2)),
    "transposed": np.arange(6).reshape(2, 3).T,
    "sliced": np.arange(20)[3::4],
    "negative": np.arange(6).reshape(2, 3)[::-1, ::-1],
    "broadcast": np.broadcast_to(np.arange(3), (4, 3)),
    "offset": np.arange(10)[3:],
    "ones": np.zeros((1, 1, 5, 1)),
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
    "read-only": np.frombuffer(b"abcd", np.uint8),
    "many": np.zeros((1,) * 30 + (2,)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_arrives_row_major(pair, name):
    a = LAYOUTS[name]
    t = send(pair, a)
    assert t.shape == a.shape and np.array_equal(np.asarray(t), a) and memoryview(t).c_contiguous


class DLPack:
    """Only what DLPack asks for, as of before or after 1.0."""

    def __init__(self, source, versioned, device=(1, 0)):
        self.source, self.versioned, self.device, self.asked = source, versioned, device, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **kwargs):
        self.asked.append(kwargs)
        if not self.versioned and kwargs:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.source.__dlpack__(**kwargs)


@pytest.mark.parametrize("versioned", [True, False])
def test_capsules_of_both_kinds(pair, versioned):
    pub, _ = pair
    x = pub.zeros(3, "bfloat16")  # of a type that no other protocol has
    memoryview(x._as_bits())[:] = memoryview(np.array([1, 2, 3], np.uint16))
    thing = DLPack(x, versioned)
    t = send(pair, thing)
    assert t.dtype == "bfloat16" and t.tobytes() == x.tobytes() == bytes([1, 0, 2, 0, 3, 0])
    assert thing.asked == [{"max_version": (1, 3)}] + ([] if versioned else [{}])


def test_a_subclass_of_type_error_is_not_taken_for_an_unknown_argument(pair):
    class Other(TypeError):
        pass

    class Fails:
        asked = 0

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **kwargs):
            self.asked += 1
            raise Other("nulls are not supported")

    x = Fails()
    with pytest.raises(Other, match="nulls"):
        send(pair, x)
    assert x.asked == 1


def test_a_producer_that_fails_is_heard(pair):
    class Fails:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **kwargs):
            raise RuntimeError("requires grad")

    with pytest.raises(RuntimeError, match="requires grad"):
        send(pair, Fails())


def test_a_dtype_that_cannot_be_told_is_no_failure(pair):
    """tvm-ffi raises ValueError for the dtype of complex numbers, and its __dlpack__ works."""

    class Untold(DLPack):
        @property
        def dtype(self):
            raise ValueError("DLDataType contains unknown type_code=5")

    a = np.arange(3, dtype=np.complex64)
    assert np.array_equal(np.asarray(send(pair, Untold(dlx.tensor(a), True))), a)

    class Stops(DLPack):
        @property
        def dtype(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        send(pair, Stops(dlx.tensor(a), True))


@pytest.mark.parametrize(
    "device, words",
    [((13, 1), "CUDA managed memory, device 1"), ((8, 0), "Metal"), ((99, 3), "99, 3")],
)
def test_devices_are_refused_in_words(pair, device, words):
    with pytest.raises(dlx.DeviceError, match=words) as e:
        send(pair, DLPack(pair[0].empty(1), True, device))
    assert isinstance(e.value, BufferError) and e.value.name == "DEVICE"

    class Cuda:
        __cuda_array_interface__ = {
            "shape": (1,),
            "typestr": "<f4",
            "data": (1, False),
            "version": 3,
        }

    with pytest.raises(dlx.DeviceError, match="torch.as_tensor"):
        send(pair, Cuda())


def test_builtin_buffers(pair, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"mapped")
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        things = [
            (b"bytes", "uint8"),
            (bytearray(b"array"), "uint8"),
            (array.array("d", [1, 2]), "float64"),
            (array.array("q", [1, -2]), "int64"),
            (mapped, "uint8"),
            (memoryview(b"abcdef")[::2], "uint8"),
            ((ctypes.c_int16 * 3)(1, 2, 3), "int16"),
            (memoryview(b"12345678").cast("d"), "float64"),
        ]
        for thing, dtype in things:
            t = send(pair, thing)
            assert t.dtype == dtype and t.tobytes() == memoryview(thing).tobytes(), thing


class Interface:
    def __init__(self, **interface):
        self.__array_interface__ = {"version": 3, **interface}


def test_the_array_interface(pair):
    a = np.arange(12, dtype=np.int32).reshape(3, 4)
    address = a.ctypes.data
    t = send(pair, Interface(shape=(3, 4), typestr="<i4", data=(address, False)))
    assert np.array_equal(np.asarray(t), a)
    t = send(pair, Interface(shape=(4, 3), typestr="<i4", data=(address, False), strides=(4, 16)))
    assert np.array_equal(np.asarray(t), a.T)
    for bad in (
        dict(shape=(1,), typestr=">i4", data=(address, False)),
        dict(shape=(1,), typestr="|V4", data=(address, False)),
        dict(shape=(1,), typestr="<i4", data=None),
        dict(shape=(2,), typestr="<i4", data=(address, False), strides=(3,)),
        dict(shape=1, typestr="<i4", data=(address, False)),
        dict(typestr="<i4", data=(address, False)),
        dict(shape=(1,), data=(address, False)),
    ):
        with pytest.raises((TypeError, BufferError)):
            send(pair, Interface(**bad))


def test_extended_types_by_the_name_of_their_dtype(pair):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        a = np.array([1, 2, 0.5], getattr(ml_dtypes, name))
        t = send(pair, a)
        assert t.dtype == name and (t.numpy() == a).all() and np.asarray(t).dtype == a.dtype
    t = send(pair, np.array([1, -2, 3], ml_dtypes.int4))  # a byte each, which the receiver is told
    assert t.dtype == "int4" and t.nbytes == 3 and t.tobytes()[0] == 1
    for name in ("int1", "uint1", "complex32"):
        if hasattr(ml_dtypes, name):
            a = np.zeros(3, getattr(ml_dtypes, name))
            t = send(pair, a)
            assert t.dtype == name and t.tobytes() == a.tobytes()


def test_a_tensor_of_anything(pair):
    a = np.arange(6).reshape(2, 3)[:, ::2]
    t = dlx.tensor(a)
    assert not t.readonly and t.copied and np.array_equal(np.asarray(t), a)
    assert dlx.tensor(b"ab").tobytes() == b"ab"
    with pytest.raises(TypeError, match="no tensor"):
        dlx.tensor(3)
    for shape in ((2**31, 2**31, 4), (2**62, 2), (2**32, 2**32), (-1,), (2**61,)):
        thing = Interface(
            shape=shape, typestr="<f8", data=(a.ctypes.data, False), strides=(0,) * len(shape)
        )
        with pytest.raises((MemoryError, ValueError)):
            dlx.tensor(thing)
        with pytest.raises((MemoryError, ValueError, dlx.LimitError)):
            pair[0].publish(thing)
    assert (
        dlx.tensor(Interface(shape=(2**40, 0, 2**40), typestr="<f8", data=(0, False))).nbytes == 0
    )


def test_a_tensor_that_is_conjugated_when_read_is_refused(pair):
    class Lazy:
        __dlpack_c_exchange_api__ = dlx.Tensor.__dlpack_c_exchange_api__

        def is_conj(self):
            return True

    with pytest.raises(BufferError, match="resolve_conj"):
        send(pair, Lazy())


@pytest.mark.parametrize("ndim", [7, 8, 9, 12, 16, 17, 64])
def test_buffers_of_many_dimensions(pair, ndim):
    thing = memoryview(b"\1\2").cast("B", (1,) * (ndim - 1) + (2,))
    t = send(pair, thing)
    assert t.shape == thing.shape and t.tobytes() == b"\1\2"
    a = np.frombuffer(thing, "uint8")
    shape = (1,) * (ndim - 1) + (2,)
    strides = (1,) * ndim
    interface = Interface(shape=shape, typestr="|u1", data=(a.ctypes.data, False), strides=strides)
    t = send(pair, interface)
    assert t.shape == shape and t.tobytes() == b"\1\2"


def test_more_dimensions_than_are_carried_are_refused(pair):
    a = np.zeros(1, "uint8")
    with pytest.raises((ValueError, dlx.Error), match="dimensions"):
        send(pair, Interface(shape=(1,) * 65, typestr="|u1", data=(a.ctypes.data, False)))
    for ndim in (65, 66, 1000):  # refused by the package, before its array of them is full
        with pytest.raises(dlx.Error, match="a shape of more than 64 dimensions"):
            pair[0].empty((1,) * ndim, "uint8")
    assert pair[0].empty((1,) * 64, "uint8").shape == (1,) * 64


def test_a_refused_buffer_is_released(pair):
    refused = [memoryview(np.zeros(2, ">i4")), memoryview(np.zeros(2, [("a", "i2"), ("b", "i4")]))]
    for thing in refused:
        for _ in range(3):
            with pytest.raises(BufferError):
                pair[0].publish(thing)
        thing.release()  # fails while the buffer is in use
