# SPDX-License-Identifier: Apache-2.0
"""Anything out: DLPack of both kinds, the C exchange API, the buffer protocol, __array_interface__,
pickles.
"""

import ctypes
import gc

import dlx
import numpy as np
import pytest
from conftest import PATIENCE
from dlpack_abi import Api, Legacy, Tensor, Versioned, exchange, is_valid, look
from dlx._dlx import tensor_from_bytes


@pytest.fixture
def received(pair):
    pub, sub = pair
    pub.publish(np.arange(6, dtype=np.float32).reshape(2, 3))
    return sub.take()


def test_the_versioned_capsule_follows_the_rules(received):
    for thing, flags in ((received, 1), (received[0], 1), (received.private(0), 2)):
        capsule = thing.__dlpack__(max_version=(1, 0))
        m = look(capsule)
        assert list(m.version) == [1, 0] and m.flags == flags and list(m.t.device) == [1, 0]
        assert m.t.byte_offset == 0 and m.t.data % 256 == 0 and m.t.shape[:2] == [2, 3]
        assert m.t.strides[:2] == [3, 1]
        assert (m.t.code, m.t.bits, m.t.lanes, m.t.ndim) == (2, 32, 1, 2)
        assert thing.__dlpack_device__() == (1, 0)


def test_versions_are_the_first_that_has_the_flags(pair):
    pub, sub = pair
    for n in (3, 1 << 20):  # private() copies what is small, and makes a view of what is large
        padded = tensor_from_bytes(bytes(n), (n,), "int4", True)
        pub.publish(padded)
        msg = sub.take()
        for thing in (padded, padded.copy(), msg, msg[0], msg.private(0), dlx.tensor(padded)):
            assert list(look(capsule := thing.__dlpack__(max_version=(1, 0))).version) == [1, 1], (
                thing
            )
            del capsule


def test_copies_are_private_and_say_so(received):
    for thing in (received, received[0]):
        first, copy = (
            thing.__dlpack__(max_version=(1, 3)),
            thing.__dlpack__(max_version=(1, 3), copy=True),
        )
        shared = look(first)
        m = look(copy)
        assert m.flags == 2 and m.t.data != shared.t.data
        ctypes.c_float.from_address(m.t.data).value = 9
        second = thing.__dlpack__(max_version=(1, 0), copy=False)
        assert look(second).t.data == shared.t.data
        assert is_valid(id(thing.__dlpack__(copy=True)), Legacy.NEW)
    assert np.asarray(received)[0, 0] == 0


def test_read_only_is_not_given_to_the_dlpack_of_before(received):
    for thing in (received, received[0]):
        for version in (None, (0, 8)):
            with pytest.raises(
                BufferError,
                match=r"asked for DLPack before 1.0, .*: pass msg.as_legacy\(\) or t.as_legacy\(\)",
            ):
                thing.__dlpack__(max_version=version)
    for thing in (received, received[0]):
        assert is_valid(id(thing.as_legacy().__dlpack__()), Legacy.NEW)
    assert is_valid(id(received[0].as_legacy()[1, 1:].__dlpack__()), Legacy.NEW)  # so is a part
    assert is_valid(id(received.private(0).__dlpack__()), Legacy.NEW)
    a = np.from_dlpack(received[0].as_legacy())
    assert np.array_equal(a, np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.mark.parametrize(
    "kwargs, error",
    [
        ({"stream": 1}, BufferError),
        ({"dl_device": (2, 0)}, BufferError),
        ({"dl_device": (1, 1)}, BufferError),
        ({"stream": -1}, BufferError),
        ({"nope": 1}, TypeError),
        ({"max_version": 1}, TypeError),
        ({"dl_device": (1,)}, TypeError),
    ],
)
def test_requests_that_memory_of_the_cpu_cannot_meet_are_refused(received, kwargs, error):
    for thing in (received, received[0]):
        with pytest.raises(error):
            thing.__dlpack__(**{"max_version": (1, 0), **kwargs})
        thing.__dlpack__(max_version=(1, 0), dl_device=(1, 0), stream=None, copy=None)


def test_a_message_of_more_tensors_asks_which(pair):
    pub, sub = pair
    pub.publish([b"a", b"b"])
    msg = sub.take()
    for use in (
        lambda: msg.__dlpack__(max_version=(1, 0)),
        lambda: memoryview(msg),
        lambda: np.from_dlpack(msg),
        lambda: np.asarray(msg),
        lambda: np.add(msg, 1),
    ):
        with pytest.raises(BufferError, match="2 tensors"):
            use()
    msg.release()
    with pytest.raises(dlx.Closed):
        np.asarray(msg)


def test_the_buffer_protocol_is_read_only(received):
    for thing in (received, received[0]):
        view = memoryview(thing)
        assert view.readonly and view.format == "f" and view.shape == (2, 3)
        assert view.strides == (12, 4) and view.nbytes == 24
        with pytest.raises(TypeError):
            view[0, 0] = 1
        with pytest.raises((BufferError, TypeError)):
            ctypes.c_char.from_buffer(thing)
    assert np.asarray(received).ctypes.data == np.asarray(received[0]).ctypes.data
    assert bytes(received[0]) == received[0].tobytes() and len(received[0]) == 2


def test_types_without_a_format_have_numpy_or_a_clear_no(pair):
    pub, sub = pair
    x = pub.zeros(4, "bfloat16")
    with pytest.raises(BufferError, match="no such data type"):
        memoryview(x)
    assert not hasattr(x, "__array_interface__")
    with pytest.raises(TypeError, match="int4"):
        pub.zeros(4, "int4").numpy()
    pub.publish(x, share=True)
    msg = sub.take()
    try:
        import ml_dtypes

        assert np.asarray(x).dtype == np.asarray(msg).dtype == ml_dtypes.bfloat16
    except ImportError:
        for thing in (x, msg):
            with pytest.raises(TypeError, match="ml_dtypes"):
                np.asarray(thing)


def test_the_array_interface(received):
    interface = received[0].__array_interface__
    address = np.asarray(received).ctypes.data
    assert interface == {
        "typestr": "<f4",
        "shape": (2, 3),
        "strides": (12, 4),
        "data": (address, True),
        "version": 3,
    }


def test_numpy_conversions(received):
    t = received[0]
    assert t.numpy().ctypes.data == np.asarray(t).ctypes.data and not t.numpy().flags.writeable
    assert np.array(t).flags.writeable and np.asarray(t, dtype="f8").dtype == np.float64
    assert (t.__array__(copy=True) == t.numpy()).all()


def test_the_exchange_api_gives_and_takes(received):
    assert list(exchange.version) == [1, 3] and exchange.prev is None
    t, out, back, seen = received[0], ctypes.POINTER(Versioned)(), ctypes.py_object(), Tensor()
    assert exchange.from_object(t, ctypes.byref(out)) == 0 and out.contents.flags == 1
    assert exchange.look(t, ctypes.byref(seen)) == 0 and seen.data == out.contents.t.data
    assert exchange.to_object(out, ctypes.byref(back)) == 0
    again, back = back.value, ctypes.py_object()
    assert isinstance(again, dlx.Tensor) and again.readonly and again.tobytes() == t.tobytes()
    assert exchange.from_object(t, ctypes.byref(out)) == 0
    out.contents.version[1] = 2  # of a library with a newer DLPack
    assert exchange.to_object(out, ctypes.byref(back)) == 0
    assert list(look(capsule := back.value.__dlpack__(max_version=(1, 3))).version) == [1, 2]
    del capsule
    with pytest.raises(TypeError):
        exchange.from_object(3, ctypes.byref(out))
    stream = ctypes.c_void_p(7)
    assert exchange.stream(1, 0, ctypes.byref(stream)) == 0 and stream.value is None


def test_the_exchange_api_allocates():
    shape, said = (ctypes.c_int64 * 2)(3, 5), []
    prototype = Tensor(device=(1, 0), ndim=2, code=2, bits=64, lanes=1, shape=shape)
    out, back = ctypes.POINTER(Versioned)(), ctypes.py_object()
    report = Api.SET_ERROR(lambda ctx, kind, text: said.append((kind, text)))
    assert exchange.alloc(ctypes.byref(prototype), ctypes.byref(out), None, report) == 0
    assert exchange.to_object(out, ctypes.byref(back)) == 0
    assert back.value.shape == (3, 5) and back.value.dtype == "float64" and not back.value.readonly
    prototype.device[0] = 2
    assert exchange.alloc(ctypes.byref(prototype), ctypes.byref(out), None, report) == -1
    assert said[0][0] == b"BufferError"


def test_memory_stays_as_long_as_what_was_made_of_it(daemon):
    """... also when message, subscription and connection are gone."""
    c = dlx.connect()
    pub, sub = c.publisher("a"), c.subscribe("a", timeout=PATIENCE)
    arrays = []
    for i in range(12):
        pub.publish(np.full(1000, i))
        msg = sub.take()
        arrays.append(
            [np.asarray(msg[0]), memoryview(msg), msg[0].__dlpack__(max_version=(1, 0))][i % 3]
        )
        del msg
    assert sub.stats()["n_held"] == 12
    pub.close(), sub.close(), c.close()
    del pub, sub, c
    gc.collect()
    for i, a in enumerate(arrays):
        value = ctypes.c_int64.from_address(look(a).t.data).value if i % 3 == 2 else a[999]
        assert value == i
