# SPDX-License-Identifier: Apache-2.0
"""Nested dicts, lists and scalars: flattened when they are published, restored when they are
received.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

import dlx
import numpy as np
import pytest

A, B = np.arange(6, dtype="f4").reshape(2, 3), np.array([1, 2], "i2")


def plain(value):
    """With tensors as (dtype, lists), to be compared."""
    if isinstance(value, (dlx.Tensor, np.ndarray, bytes)):
        array = np.frombuffer(value, "u1") if isinstance(value, bytes) else np.asarray(value)
        return "tensor", str(array.dtype), array.tolist()
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value


TREES = {
    "scalars": {
        "x": A,
        "step": 3,
        "lr": 1e-3,
        "name": "ad\u00e4m",
        "on": True,
        "off": False,
        "none": None,
        "z": 1 - 2j,
        "big": 2**80,
    },
    "not finite": {"x": A, "loss": float("inf"), "low": -float("inf")},
    "dicts": {"params": {"dense": {"kernel": A, "bias": B}, "norm": {"scale": B}}, "x": B},
    "lists": {
        "layers": [A, B, {"w": A, "n": 1}],
        "pair": (A, 2),
        "empty": [],
        "none": (),
        "deep": [[A], [[B], 5]],
    },
    "torch": {
        "state": {0: {"step": A, "exp_avg": B}, 1: {"step": B, "exp_avg": A}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "params": [0, 1]}],
    },
    "ints": {0: A, 5: {"x": B}},
    "odd keys": {
        "a/b": {"~": A, "~1": B, "/": 1},
        "a": {"b": B},
        "dlx.int": {"dlx.tuple": A},
        "m": {"dlx.dict": 1},
        "u": {"dlx.int": 1, "v": A},
    },
    "empty dicts": {"x": A, "e": {}, "f": {"g": {}}},
    "bytes are tensors": {"x": {"raw": b"abc"}},
    "tensors in order": {"b": {"z": A, "a": B}, "a": A},
}


@pytest.mark.parametrize("name", TREES)
def test_a_nested_message_comes_back_as_it_was(send, name):
    tree = TREES[name]
    first = send(tree)
    for msg in (first, send(first)):  # which goes on with its structure
        assert type(msg) is dlx.TreeMessage and isinstance(msg, Mapping)
        assert isinstance(msg, dlx.NamedMessage)
        assert plain(dict(msg)) == plain(tree) and msg.meta is None
        assert {key: plain(msg[key]) for key in msg} == plain(tree) and len(msg) == len(tree)
        assert list(msg.keys()) == list(msg) and len(msg.values()) == len(msg.items()) == len(tree)
        assert all(key in msg for key in tree)


def test_a_tree_travels_as_a_flat_set_that_any_program_reads(send):
    msg = send({"opt": {"m": [A, B], "a/b": {"~": B}}, "step": 3, "x": B}, meta={"t": 1})
    assert msg.names == ["opt/m/0", "opt/m/1", "opt/a~1b/~0", "x"] and len(msg.tensors) == 4
    assert msg.meta_bytes == b'{"dlx.tree":{"opt":{"m":{"dlx.list":{}}},"step":3},"meta":{"t":1}}'
    assert msg.meta == {"t": 1}
    assert send({"a": {"b": A}}).meta_bytes == b'{"dlx.tree":{}}'
    assert msg.private("opt/m/1").tolist() == [1, 2]
    assert repr(msg).startswith(
        "<dlx.TreeMessage topic=cam/front seq=1: 'opt/m/0' float32 (2, 3), "
    )


def test_a_flat_dict_stays_what_it_was(send):
    for flat in ({"a/b": A, "~": B}, OrderedDict(a=A), {"x": np.float64(1), "b": b"1"}):
        msg = send(flat)
        assert type(msg) is dlx.NamedMessage and list(msg) == msg.names == list(flat)
        assert msg.meta_bytes == b""


def test_other_mappings_are_nested_as_dicts(send):
    class Frozen(Mapping):
        def __init__(self, x):
            self.x = x

        def __getitem__(self, key):
            return self.x[key]

        def __iter__(self):
            return iter(self.x)

        def __len__(self):
            return len(self.x)

    for kind in (Frozen, MappingProxyType, OrderedDict):
        assert plain(dict(send(kind({"x": A, "sub": kind({"y": B})})))) == plain(
            {"x": A, "sub": {"y": B}}
        )


@pytest.mark.parametrize(
    "meta", [{"t": 1}, {1: (2, b"3")}, b"raw\xff", b'{"a": 1}', b'{"dlx.tree":{}}'], ids=repr
)
def test_metadata_are_beside_the_structure(pair, send, meta):
    msg = send({"x": {"y": A}, "n": 1}, meta=meta)
    assert msg.meta == meta and msg["n"] == 1
    again = send(msg, meta={"other": 1})
    assert again.meta == {"other": 1} and plain(dict(again)) == plain({"x": {"y": A}, "n": 1})
    assert send(msg).meta == meta
    assert type(send({"x": A}, meta=meta)) is dlx.NamedMessage


def test_errors_name_the_path(pair):
    pub, _ = pair
    nothing, strange = object(), np.zeros(2, ">f4")
    for bad, at in (
        ({"x": A, "opt": {"m": [B, nothing]}}, "tensors['opt']['m'][1]"),
        ({"a/~b": (nothing,)}, "tensors['a/~b'][0]"),
        ({"a": {7: nothing}}, "tensors['a'][7]"),
        ({"a/b": nothing}, "tensors['a/b']"),
        ((A, nothing), "tensors[1]"),
    ):
        with pytest.raises(TypeError, match=re.escape(f"{at}: no tensor: <class 'object'>")):
            pub.publish(bad)
    for bad, at in (
        ({"a": A, "b": strange}, "tensors['b']"),
        ({"a": {"b": strange}}, "tensors['a']['b']"),
        ([strange], "tensors[0]"),
    ):
        with pytest.raises(BufferError, match=re.escape(f"{at}: ")):
            pub.publish(bad)
    for bad, at in (([1, 2, 3], 0), ((A, [A, A]), 1), ([A, {"a": A}], 1), (["text"], 0)):
        with pytest.raises(
            TypeError,
            match=re.escape(
                f"tensors[{at}]: no tensor: {type(bad[at])} in a list or tuple, which is a set"
            ),
        ):
            pub.publish(bad)
    for bad, words in (
        ({"x": A, "opt": {"m": {b"k": A}}}, "opt/m: the keys .* not b'k'"),
        ({"a": {1: A, "b": B}}, "a: the keys .* mixed"),
        ({1: A, "b": B}, "the message: .* mixed"),
        ({"a": {True: A}}, "a: .*True"),
    ):
        with pytest.raises(TypeError, match=words):
            pub.publish(bad)
    cycle = {"x": A}
    cycle["me"] = cycle
    for bad in (cycle, {"x": {"": A}}, {"": A, "n": 1}):
        with pytest.raises(ValueError, match="without an end|empty key"):
            pub.publish(bad)
    assert pub.stats()["published"] == 0


def test_a_key_that_is_not_there_names_those_that_are(send):
    msg = send({"x": {"y": A}, "n": 1})
    for key in ("nope", "x/y", 0, None):
        with pytest.raises(dlx.NotFound, match="has no .*; it has 'x', 'n'"):
            msg[key]
        assert key not in msg and msg.get(key, 7) == 7
    with pytest.raises(dlx.NotFound, match=r"; that tensor is msg\['x'\]\['y'\]$"):
        msg["x/y"]
    msg.release()
    for use in (lambda: msg["n"], lambda: list(msg), lambda: len(msg), lambda: "n" in msg):
        with pytest.raises(dlx.Closed):
            use()


@pytest.mark.parametrize(
    "meta",
    [
        b'{"dlx.tree":1,}',
        b'{"dlx.tree":3}',
        b'{"dlx.tree":{"a":1}}',
        b'{"dlx.tree":{"dlx.list":{}}}',
        b'{"dlx.tree":{"a":{"dlx.int":{}}}}',
        b'{"dlx.tree":[]}',
        b'{"dlx.tree":{"z":{"dlx.none":1}}}',
        b'{"dlx.tree":{"z":%s}}' % (b"[" * 600 + b"]" * 600),
    ],
    ids=lambda x: repr(x)[:40],
)
def test_a_tree_of_another_program_is_a_flat_set_at_worst(pair, monkeypatch, meta):
    """Metadata as a C program would send them."""
    pub, sub = pair
    monkeypatch.setattr("dlx._meta.encode", bytes)
    pub.publish({"a/b": A, "c": B}, meta=meta)
    msg = sub.take()
    assert type(msg) is dlx.TreeMessage and msg.meta_bytes == meta
    assert set(msg) <= {"a", "a/b", "c", "z"} and plain(msg["c"]) == plain(B) and len(msg) in (2, 3)
    assert repr(msg)


def test_thousands_of_tensors_need_no_room_in_the_metadata(send):
    tree = {f"layer{i}": {"kernel": B, "bias": B} for i in range(3000)}
    msg = send({"params": tree, "step": 1})
    assert len(msg.tensors) == 6000 and len(msg.meta_bytes) < 100 and len(msg["params"]) == 3000
    assert msg["step"] == 1
