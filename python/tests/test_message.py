# SPDX-License-Identifier: Apache-2.0
"""A message behaves as what it holds, and does not have what it cannot do."""

from collections.abc import Mapping

import dlx
import numpy as np
import pytest

VALUES = np.arange(6, dtype="f4").reshape(2, 3)
OF_A_TENSOR = "shape strides ndim dtype itemsize nbytes device readonly numpy tobytes".split()
OF_A_MAPPING = ["get", "keys", "values", "items"]


def has(msg, names):
    return [name for name in names if hasattr(msg, name)]


def test_a_message_of_one_tensor_has_the_attributes_of_the_tensor(send):
    for msg in (send(VALUES), send([VALUES])):
        assert type(msg) is dlx.Message and has(msg, OF_A_TENSOR) == OF_A_TENSOR
        assert has(msg, OF_A_MAPPING) == []
        assert msg.shape == (2, 3) and msg.strides == (3, 1) and msg.ndim == 2
        assert msg.dtype == "float32" and msg.nbytes == 24
        assert msg.device == "cpu" and msg.readonly and msg.itemsize == 4
        assert msg.tobytes() == VALUES.tobytes()
        assert (msg.numpy() == VALUES).all() and (np.asarray(msg) == VALUES).all()
        assert msg.__dlpack_device__() == (1, 0)
        assert [t.shape for t in msg] == [(2, 3)] and msg.names == [None]


def test_a_message_of_one_tensor_has_no_length_that_could_be_either_of_two(send):
    for msg in (send(VALUES), send([VALUES])):
        with pytest.raises(TypeError, match=r"len\(msg\[0\]\), .* is len\(msg.tensors\)$"):
            len(msg)
        assert len(msg[0]) == 2 and len(msg.tensors) == 1 and bool(msg)
        (t,) = msg
        assert [x.shape for x in list(msg)] == [t.shape] == [(2, 3)]
        assert np.stack([msg, msg]).shape == (2, 2, 3)
    assert len(send({"rgb": VALUES})) == 1


def test_a_set_without_names_is_a_sequence_of_tensors(send):
    msg = send([VALUES, VALUES[0]])
    a, b = msg
    assert (a.numpy() == VALUES).all() and (b.numpy() == VALUES[0]).all() and len(msg) == 2
    assert msg[-1].shape == (3,)
    assert has(msg, OF_A_TENSOR + OF_A_MAPPING) == [] and not isinstance(msg, Mapping)
    assert [t.shape for t in msg.tensors] == [(2, 3), (3,)] and msg.names == [None, None]
    with pytest.raises(AttributeError, match="2 tensors has no shape: .* msg.key..shape"):
        msg.shape
    with pytest.raises(AttributeError, match="sequence of tensors"):
        msg.keys()
    with pytest.raises(TypeError):
        sum(msg)


def test_tensors_with_names_are_a_mapping(send):
    msg = send({"rgb": VALUES, "depth": VALUES[0]})
    assert type(msg) is dlx.NamedMessage and isinstance(msg, Mapping)
    assert isinstance(msg, dlx.Message)
    assert list(msg) == list(msg.keys()) == msg.names == ["rgb", "depth"] and len(msg) == 2
    assert msg.get("rgb").shape == (2, 3) and msg.get("nope") is None and msg.get("nope", 7) == 7
    assert [t.shape for t in msg.values()] == [(2, 3), (3,)]
    assert {k: t.shape for k, t in msg.items()} == {"rgb": (2, 3), "depth": (3,)}
    assert {k: t.shape for k, t in dict(msg).items()} == {"rgb": (2, 3), "depth": (3,)}
    assert msg.keys() & {"rgb", "x"} == {"rgb"}
    assert has(msg, OF_A_TENSOR) == [] and msg[1].shape == (3,)
    match msg:
        case {"rgb": rgb, **rest}:
            assert rgb.shape == (2, 3) and list(rest) == ["depth"]
        case _:
            pytest.fail("no match")


def test_a_single_tensor_with_a_name_is_a_mapping_that_arrays_are_made_of(send):
    msg = send({"rgb": VALUES})
    assert isinstance(msg, Mapping) and list(msg) == ["rgb"] and not hasattr(msg, "shape")
    assert (np.asarray(msg) == VALUES).all() and msg.__dlpack_device__() == (1, 0)


def test_a_message_of_one_scalar_is_a_number(send):
    for sent in (np.float64(3.5), [np.array([3.5])], {"loss": np.float32([[3.5]])}):
        msg = send(sent)
        assert float(msg) == 3.5 and int(msg) == 3 and complex(msg) == 3.5 and bool(msg)
    assert bool(send(np.zeros(1)))  # as in `while msg := sub.try_take()`
    for number in (float, int, complex):
        with pytest.raises(ValueError, match=r"one element, and this one has the shape \(2, 3\)"):
            number(send(VALUES))
        with pytest.raises(TypeError, match="a message of 2 tensors is no number: .* msg.key"):
            number(send([VALUES, VALUES]))


@pytest.mark.parametrize("key", [(0, 1), slice(0, 1), 1.0, None], ids=str)
def test_a_key_that_is_for_elements_is_referred_to_a_tensor(send, key):
    for msg in (send(VALUES), send({"rgb": VALUES})):
        with pytest.raises(TypeError, match="number or name of a tensor, not .*: .*, msg.0..key."):
            msg[key]
    with pytest.raises(IndexError, match="tensor 1 of a message of 1: .* of the first are msg.0.$"):
        send(VALUES)[1]


def test_a_released_message_says_so(send):
    for msg in (send(VALUES), send({"a": VALUES})):
        msg.release()
        for use in (
            lambda: list(msg),
            lambda: msg.names,
            lambda: msg.tensors,
            lambda: "a" in msg,
            lambda: msg.shape,
            lambda: len(msg),
        ):
            with pytest.raises((dlx.Closed, AttributeError), match="released|named tensors"):
                use()
        assert "released" in repr(msg)


def test_repr_tells_what_is_in_it(send):
    assert repr(send(VALUES)) == "<dlx.Message topic=cam/front seq=1: float32 (2, 3)>"
    assert (
        repr(send({"rgb": VALUES, "n": np.int8(1)}))
        == "<dlx.NamedMessage topic=cam/front seq=2: 'rgb' float32 (2, 3), 'n' int8 ()>"
    )
    assert repr(send([b"x"] * 7)).endswith(
        ": uint8 (1,), uint8 (1,), uint8 (1,), uint8 (1,), uint8 (1,), and 2 more>"
    )


def test_a_named_message_is_published_and_exported_as_any_other(send):
    """The second type is one of messages to the C code, too."""
    msg = send(send({"a": VALUES, "b": b"1"}, meta={"k": 1}))
    assert type(msg) is dlx.NamedMessage and list(msg) == ["a", "b"] and msg.meta == {"k": 1}
    one = send({"a": VALUES})
    assert (send(one)["a"].numpy() == VALUES).all() and (dlx.tensor(one).numpy() == VALUES).all()
