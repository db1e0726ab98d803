# SPDX-License-Identifier: Apache-2.0
"""A tensor is array-like: its data type, its elements, parts of it, and what libraries do with it
unasked.
"""

import gc
import json
import pickle
import weakref
import zlib

import dlx
import numpy as np
import pytest

VALUES = np.arange(24, dtype="f4").reshape(2, 3, 4)


def test_a_dtype_equals_that_type_in_any_form(send):
    dtype = send(VALUES)[0].dtype
    assert type(dtype) is dlx.DType and isinstance(dtype, str)
    assert dtype.name == str(dtype) == f"{dtype}" == "float32"
    for same in (
        np.float32,
        np.dtype("f4"),
        "float32",
        "f4",
        "<f4",
        dlx.DType(np.float32),
        "torch.float32",
    ):
        assert dtype == same and same in (dtype,) and not dtype != same
    for other in (np.float64, np.dtype("i4"), "float64", "rgb", float, int, None, 3, object()):
        assert dtype != other and not dtype == other
    assert np.float32 == dtype and np.dtype("f4") == dtype and np.float64 != dtype
    assert {dtype: 1}["float32"] == 1 and hash(dtype) == hash("float32")
    assert json.dumps(dtype) == '"float32"'
    assert repr(dtype) == "dlx.DType('float32')" and pickle.loads(pickle.dumps(dtype)) == dtype
    assert np.dtype(dtype) == np.float32
    assert np.zeros(3, dtype).dtype == np.asarray(send(VALUES)).dtype == dtype
    with pytest.raises(TypeError, match="no data type"):
        dlx.DType("rgb")


def test_numpy_is_told_the_dtype_of_a_tensor_and_of_a_message_of_one(pair, send):
    msg = send(VALUES)
    assert msg.__numpy_dtype__ == msg[0].__numpy_dtype__ == np.dtype("f4")
    assert not hasattr(send([VALUES, VALUES]), "__numpy_dtype__")
    with pytest.raises(TypeError, match="NumPy has no data type float32x4"):
        pair[0].zeros(1, "float32x4").__numpy_dtype__


@pytest.mark.parametrize(
    "name", ["complex64x2", "complex128x3", "float32x4", "bfloat16x2", "77:8:1", "5:64:7"]
)
def test_names_that_are_given_are_read(pair, name):
    x = pair[0].zeros((2,), name)
    again = pickle.loads(pickle.dumps(x))
    assert again.dtype == x.dtype == dlx.DType(x.dtype)
    assert pair[0].empty(2, x.dtype).dtype == x.dtype
    assert "x" not in name or x.dtype == name


def test_the_names_of_complex_types_have_an_x_that_is_no_lane():
    assert [str(dlx.DType(x)) for x in ("complex64", "complex128", np.complex64, complex)] == [
        "complex64",
        "complex128",
        "complex64",
        "complex128",
    ]
    for bad in ("complex64x", "complex64x0", "complex64x70000", "compleex64"):
        with pytest.raises(TypeError):
            dlx.DType(bad)


def test_elements_are_numbers_of_python(send):
    t = send(VALUES)[0]
    assert t.size == 24 and t.tolist() == VALUES.tolist() and t[1, 2, 3].item() == 23.0
    assert type(t[0, 0, 1].item()) is float
    for x in (
        np.float16([1, 2]),
        np.array([1 + 2j]),
        np.array([True, False]),
        np.int64(-3),
        np.zeros((0, 2)),
        np.uint64([[2**63]]),
    ):
        assert send(x)[0].tolist() == x.tolist() and send(x).size == x.size
    one = send(np.array([[3.5]]))[0]
    assert one.item() == float(one) == 3.5 and int(one) == 3 and complex(one) == 3.5 and bool(one)
    assert not bool(send(np.zeros(1))[0])
    for many in (t, send(np.zeros(0))[0]):
        for use in (many.item, lambda: float(many), lambda: bool(many)):
            with pytest.raises(ValueError, match="one element"):
                use()


KEYS = [0, -1, np.int64(1), ..., None, (), *np.s_[:, 1:, ::-1, 5:1, 0:0]]
KEYS += [np.s_[0, 1], np.s_[0, 1, 2], np.s_[1, ..., 3], np.s_[..., 2], np.s_[:, 1]]
KEYS += [np.s_[:, None, ::2, 3:0:-2], np.s_[None, ..., None], np.s_[0, 1:3, ::-3]]
KEYS += [np.s_[-2:, ..., -3:-1]]


@pytest.mark.parametrize(
    "layout", [lambda x: x, lambda x: np.asfortranarray(x)], ids=["rows", "columns"]
)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_part_is_the_part_that_numpy_gives(send, key, layout):
    t, part = send(layout(VALUES))[0], VALUES[key]
    assert t[key].shape == part.shape and t[key].numpy().tolist() == part.tolist()
    assert t[key].readonly
    x = dlx.tensor(VALUES)
    assert np.shares_memory(x.numpy(), x[key].numpy()) == (part.size > 0)


@pytest.mark.parametrize(
    "key", [2, -3, (0, 0, 4), (0, 0, 0, 0), (..., ...), (slice(None), 3)], ids=str
)
def test_an_index_outside_is_an_index_error(send, key):
    t = send(VALUES)[0]
    with pytest.raises(IndexError):
        VALUES[key]
    with pytest.raises(IndexError):
        t[key]


@pytest.mark.parametrize("key", ["a", 1.0, True, [0, 1], np.array([0])], ids=str)
def test_other_keys_name_what_takes_them(send, key):
    with pytest.raises(TypeError, match="numpy"):
        send(VALUES)[0][key]


def test_parts_hold_the_message_and_are_made_of_the_tensor(pair):
    pub, sub = pair
    pub.publish(VALUES)
    part = sub.take()[0][1, 2]
    assert sub.stats()["n_held"] == 1 and part.tolist() == [20, 21, 22, 23]
    del part
    assert sub.stats()["n_held"] == 0
    x = pub.zeros((2, 3))
    row = x[0]
    np.asarray(row)[:] = 5
    with pytest.raises(dlx.WouldCopy):
        pub.publish(x, strict=True)
    with pytest.raises(dlx.WouldCopy):
        pub.publish(row, strict=True)
    del row
    assert not pub.publish(x, strict=True).copied and sub.take().tolist() == [[5, 5, 5], [0, 0, 0]]
    for use in (lambda: x[0], lambda: list(x), lambda: x.size, x.tolist):
        with pytest.raises(ValueError, match="published"):
            use()
    with pytest.raises(BufferError, match="whole bytes"):
        pub.zeros(4, "int4")[1]


def test_assigned_values_are_published_without_a_copy(pair):
    pub, sub = pair
    x = pub.empty(VALUES.shape, VALUES.dtype)
    x[:] = VALUES
    x[1, ..., 2] = 7
    x[VALUES < 2] = 9
    expected = VALUES.copy()
    expected[1, ..., 2], expected[expected < 2] = 7, 9
    assert not pub.publish(x, strict=True).copied
    received = sub.take()[0]
    assert np.array_equal(received.numpy(), expected)
    with pytest.raises(ValueError, match="read-only: one that was received .* msg.private"):
        received[:] = 0
    with pytest.raises(ValueError, match="was published"):
        x[:] = 0
    with pytest.raises(ValueError, match="broadcast"):
        pub.empty(2)[:] = [1, 2, 3]


def test_a_tensor_is_iterated_over_as_an_array(send):
    t = send(VALUES)[0]
    assert [x.tolist() for x in t] == VALUES.tolist()
    with pytest.raises(TypeError):
        iter(send(np.float32(1))[0])
    with pytest.raises(TypeError):
        sum(t)


def test_plain_bytes_are_taken_of_bytes_alone(send):
    """PyTorch's asarray() asks for a buffer without shape and type, and would take it for bytes."""
    for x in (b"12345678", np.int8([1, 2]), np.uint8(3)):
        assert zlib.crc32(send(x)) == zlib.crc32(send(x)[0]) == zlib.crc32(x)
    for x in (VALUES, VALUES[0, 0], np.uint8([[1]])):
        for thing in (send(x), send(x)[0]):
            with pytest.raises(BufferError, match="memoryview"):
                zlib.crc32(thing)
            assert zlib.crc32(memoryview(thing)) == zlib.crc32(x) and bytes(thing) == x.tobytes()


def test_messages_and_tensors_are_referred_to_weakly(send):
    for x in (VALUES, {"a": VALUES}):
        msg, gone = send(x), []
        t = msg[0]
        refs = weakref.ref(msg), weakref.ref(t)
        weakref.finalize(t, gone.append, 1)
        assert refs[0]() is msg and refs[1]() is t and weakref.getweakrefcount(msg) == 1
        del msg, t
        gc.collect()
        assert refs[0]() is None and refs[1]() is None and gone == [1]


def test_repr_shows_the_first_elements(pair, send):
    pub, _ = pair
    assert (
        repr(send(VALUES)[0])
        == "<dlx.Tensor float32 (2, 3, 4), read-only, received: [0.0, 1.0, 2.0, 3.0, ...]>"
    )
    assert repr(send(np.int16(7))[0]) == "<dlx.Tensor int16 (), read-only, received: 7>"
    assert repr(pub.zeros(3, "uint8")) == "<dlx.Tensor uint8 (3,), in shared memory: [0, 0, 0]>"
    assert repr(pub.zeros(100, "uint8")).endswith(": [0, 0, 0, 0, 0, 0, ...]>")
    assert repr(pub.zeros(3, "bfloat16")) == "<dlx.Tensor bfloat16 (3,), in shared memory>"
    assert repr(pub.zeros((0, 3), "uint8")) == "<dlx.Tensor uint8 (0, 3), in shared memory>"
    x = pub.zeros(1)
    assert "[0.0]" in repr(x) and not pub.publish(x, strict=True).copied
    assert repr(x) == "<dlx.Tensor, published>"
