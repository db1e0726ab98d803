# SPDX-License-Identifier: Apache-2.0
"""msg.meta is what publish(meta=) was given."""

import dlx
import numpy as np
import pytest

GIVEN = [
    {"t": 1.5, "a": [1, {"b": None}], "s": "\u00e4", "n": -(2**70), "on": True},
    {},
    {1: "a"},
    {"x": {0: {"y": 1}, 5: []}},
    {"raw": b"\x00\xff"},
    {"pair": (1, ("a", b"b")), "l": [(), []]},
    {"z": 1 - 2j},
    {"dlx.int": {"1": 2}},
    {"dlx.tree": {}},
    {"dlx.tree": 1, "b": 2},
    {"u": {"dlx.bytes": "no base64"}},
    b'{"a": 1}',
    b"{}",
    b'{"a": 1}\t',
    b'{"a": 1}\t\t',
    b"{x",
    b"\t",
    b"[1]",
    b'{"dlx.int":{"1":2}}',
]


@pytest.mark.parametrize("given", GIVEN, ids=repr)
def test_metadata_come_back_as_they_were_given(pair, given):
    pub, sub = pair
    pub.publish(b"x", meta=given)
    msg = sub.take()
    assert msg.meta == given and type(msg.meta) is type(given) and type(msg) is dlx.Message
    pub.publish(msg)
    assert sub.take().meta == given


def test_no_bytes_are_no_metadata(pair):
    pub, sub = pair
    for none in (None, b""):
        pub.publish(b"x", meta=none)
        assert sub.take().meta is None


def test_plain_metadata_are_plain_json_to_others(pair):
    pub, sub = pair
    for given, sent in (
        ({"t": np.float64(1.5), "n": np.int64(3), "a": np.array([7])}, b'{"t":1.5,"n":3,"a":7}'),
        (b'{"a": 1}', b'{"a": 1}\t'),
        (b"{x", b"{x"),
        ({"k": (1, 2)}, b'{"k":{"dlx.tuple":[1,2]}}'),
        ({3: b"\xff"}, b'{"dlx.int":{"3":{"dlx.bytes":"/w=="}}}'),
    ):
        pub.publish(b"x", meta=given)
        assert sub.take().meta_bytes == sent


@pytest.mark.parametrize(
    "sent, meta",
    [
        (b'{"frame": 7}', {"frame": 7}),
        (b'{"dlx.int":{"x":1}}', {"dlx.int": {"x": 1}}),
        (b'{"dlx.new":1}', {"dlx.new": 1}),
        (b'{"dlx.bytes":3}', {"dlx.bytes": 3}),
        (b'{"a":{"dlx.tuple":7}}', {"a": {"dlx.tuple": 7}}),
    ],
    ids=repr,
)
def test_json_of_other_programs_is_a_dict(pair, monkeypatch, sent, meta):
    monkeypatch.setattr("dlx._meta.encode", bytes)
    pair[0].publish(b"x", meta=sent)
    assert pair[1].take().meta == meta


def test_an_object_that_cannot_be_metadata_is_named(pair):
    for bad, words in (
        ({"a": [1, {"b": {1}}]}, r"meta\['a'\]\[1\]\['b'\] is of type set"),
        ({"a": np.arange(3)}, r"meta\['a'\] is an array, of type ndarray"),
        ({"a": {1: 2, "b": 3}}, r"meta\['a'\]: the keys .* mixed"),
        ({None: 1}, "meta: the keys .* not None"),
        ("text", "dict or bytes, not str"),
        (7, "not int"),
    ):
        with pytest.raises(TypeError, match=words):
            pair[0].publish(b"x", meta=bad)
    assert pair[0].stats()["published"] == 0
