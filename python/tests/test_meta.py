# SPDX-License-Identifier: Apache-2.0
"""Metadata that JSON does not have, and metadata of publishers who write what they like."""

import pytest


def nested(depth):
    meta = {}
    for _ in range(depth):
        meta = {"a": meta}
    return meta


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, {"b": -float("inf")}]], ids=repr)
def test_numbers_that_json_does_not_have_are_refused(pair, value):
    """Programs in other languages could not read them."""
    with pytest.raises(ValueError, match="metadata that JSON cannot hold"):
        pair[0].publish(b"x", meta={"a": value})


def test_metadata_without_an_end_is_refused(pair):
    cycle = {}
    cycle["a"] = cycle
    for meta in (nested(10000), cycle):
        with pytest.raises(ValueError, match="metadata that JSON cannot hold"):
            pair[0].publish(b"x", meta=meta)


def test_metadata_that_is_nested_too_deep_to_read_is_bytes(pair):
    pub, sub = pair
    deep = b'{"a":' * 10000 + b"1" + b"}" * 10000
    for data in (deep, b"{x", b'{"a": "\xff"}', b'{"a": %s}' % (b"1" * 5000)):
        pub.publish(b"x", meta=data)
        assert sub.take().meta == data
    pub.publish(b"x", meta=nested(5))
    assert sub.take().meta == nested(5)
