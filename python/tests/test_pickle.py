# SPDX-License-Identifier: Apache-2.0
"""Tensors as bytes and in pickles."""

import copy
import ctypes
import pickle

import dlx
import numpy as np
import pytest
from dlpack_abi import tensor_of
from dlx._dlx import tensor_from_bytes
from test_exchange import Memory


@pytest.fixture
def received(pair):
    pub, sub = pair
    pub.publish(np.arange(6, dtype=np.float32).reshape(2, 3))
    return sub.take()


def test_pickles_hold_values(received, pair):
    t = pickle.loads(pickle.dumps(received[0]))
    assert not t.readonly and t.shape == (2, 3) and t.tobytes() == received[0].tobytes()
    for dtype in ("bfloat16", "int4", "float32x4", "77:8:1"):
        x = pair[0].zeros((2, 3), dtype)
        again = pickle.loads(pickle.dumps(x))
        assert (again.dtype, again.shape, again.nbytes) == (x.dtype, x.shape, x.nbytes)
    with pytest.raises(TypeError, match="pickle its tensors"):
        pickle.dumps(received)
    for bad in (
        (b"abc", (2,), "uint8"),
        (b"", (2**62, 4), "uint8"),
        (b"", (-1,), "uint8"),
        (b"", (1,) * 65, "uint8"),
    ):
        with pytest.raises(ValueError):
            tensor_from_bytes(*bad)


def address(buffer):
    return np.frombuffer(buffer, np.uint8).ctypes.data


def test_handles_are_neither_copied_nor_pickled(pair, c, received):
    for handle in (c, *pair):
        for use in (pickle.dumps, copy.copy):
            with pytest.raises(
                TypeError,
                match=f"dlx.{type(handle).__name__} belongs to its process and cannot be copied or "
                f"pickled: call dlx.connect",
            ):
                use(handle)
    with pytest.raises(TypeError, match="not copied or pickled: pickle its tensors"):
        copy.copy(received)


def test_a_tensor_that_is_twice_in_a_set_is_for_share(pair):
    x = pair[0].zeros(2)
    with pytest.raises(
        dlx.InvalidError, match=r'"b"\) is in the set twice: share=True allows that'
    ):
        pair[0].publish({"a": x, "b": x})
    pair[0].publish({"a": x, "b": x}, share=True)
    assert pair[1].take()["b"].tolist() == [0, 0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_holds_values(received, protocol):
    for t in (
        received[0],
        dlx.tensor(np.arange(6, dtype=np.float32).reshape(2, 3)),
        dlx.tensor(np.zeros((0, 3))),
    ):
        again = pickle.loads(pickle.dumps(t, protocol))
        assert (again.shape, again.dtype, again.readonly, again.tobytes()) == (
            t.shape,
            t.dtype,
            False,
            t.tobytes(),
        )
    assert copy.deepcopy(received[0]).tobytes() == received[0].tobytes()


def test_out_of_band_nothing_is_copied(received, pair):
    for t, readonly in ((received[0], True), (dlx.tensor(received[0]), False)):
        buffers = []
        data = pickle.dumps(t, 5, buffer_callback=buffers.append)
        assert len(buffers) == 1 and address(buffers[0]) == address(memoryview(t).cast("B"))
        assert buffers[0].raw().readonly == readonly
        again = pickle.loads(data, buffers=buffers)
        assert again.tobytes() == t.tobytes() and not again.readonly
        assert address(memoryview(again).cast("B")) != address(buffers[0])
        assert pickle.loads(data, buffers=[bytearray(buffers[0].raw())]).tobytes() == t.tobytes()
    for dtype in ("bfloat16", "int4", "float32x4", "77:8:1"):
        # the buffer protocol has no name for them
        x, buffers = pair[0].zeros((2, 3), dtype), []
        data = pickle.dumps(x, 5, buffer_callback=buffers.append)
        assert (pickle.loads(data, buffers=buffers).dtype, buffers[0].raw().nbytes) == (
            dtype,
            x.nbytes,
        )


def test_a_pickle_that_shares_memory_is_known_to_publish(pair):
    pub, _ = pair
    x, buffers = pub.zeros(3), []
    pickle.dumps(x, 5, buffer_callback=buffers.append)
    with pytest.raises(dlx.WouldCopy):
        pub.publish(x, strict=True)
    buffers.clear()
    assert not pub.publish(x).copied


def test_tensors_with_strides_are_pickled_row_major():
    memory, strides = Memory(), (ctypes.c_int64 * 1)(-1)
    managed = memory.tensor()
    managed.t.data += 2
    managed.t.strides = ctypes.cast(strides, type(managed.t.strides))
    t = tensor_of(managed)
    for protocol in (4, 5):
        assert pickle.loads(pickle.dumps(t, protocol)).tobytes() == t.tobytes() == b"\3\2\1"
