# SPDX-License-Identifier: Apache-2.0
"""Data of other programs: metadata, names and structures that look like ours. A message of any of
them raises nothing but dlx.Error.
"""

import json
import random
import string

import dlx
import pytest
from dlx import _meta

META_MAX = 65536
N_CASES = 400
DIGITS = "1" + "0" * 400  # an int that no float can hold

KINDS = ["dict", "list", "tuple", "int", "float", "complex", "bytes", "tree", "?", ""]
PARTS = ["", "a", "b", "0", "1", "-1", "~", "~0", "~1", "x" * 90, "\udcff"]


def number(rng):
    return rng.choice(
        [0, -1, 3, 0.5, -1e308, float("nan"), float("inf"), int(DIGITS), 1 << 63, True, None]
    )


def text(rng):
    return rng.choice(["", "nan", "1e999", DIGITS, "AP8=", "=", "\ud800", "dlx.int", "é", "x/y"])


def value(rng, depth=4):
    """A value of JSON, which often has a tag of ours where it makes no sense."""
    which = rng.randrange(6 if depth > 0 else 2)
    if which == 0:
        return number(rng)
    if which == 1:
        return text(rng)
    if which == 2:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if which == 3:
        return {rng.choice(PARTS): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    return {f"dlx.{rng.choice(KINDS)}": value(rng, depth - 1)}


def metadata(rng):
    """Bytes as they travel."""
    which = rng.randrange(8)
    if which == 0:
        return rng.randbytes(rng.randrange(1, 40))
    if which == 1:
        return b'{"dlx.tree":' * rng.randrange(1, 3000) + b"1" + b"}" * rng.randrange(3000)
    tree = {"dlx.tree": value(rng)}
    if rng.randrange(2):
        tree["meta"] = value(rng)
    data = json.dumps(tree if which < 6 else value(rng), separators=(",", ":")).encode()
    if which == 5 and data:  # a byte is another one
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice(string.printable).encode() + data[at + 1 :]
    return data


def names(rng):
    made = {"/".join(rng.choice(PARTS) for _ in range(rng.randrange(1, 4))) for _ in range(4)}
    return sorted(made - {""})


def use(msg, pub):
    """Each decoder of the other program's data."""
    yield lambda: msg.meta
    yield lambda: msg.names
    yield lambda: repr(msg)
    yield lambda: msg._repr_html_()
    if type(msg) is not dlx.Message or len(msg.names) != 1:  # else it has none
        yield lambda: len(msg)
    yield lambda: list(msg)
    keys = [key for key in msg if isinstance(key, (str, int))]
    for name in [*filter(None, msg.names), *keys, "a", "0", "no such", "", 0, -1]:
        yield lambda: msg[name]
        yield lambda: name in msg
        yield lambda: msg.private(name)
    for attribute in ("keys", "values", "items"):
        if hasattr(msg, attribute):
            yield lambda: list(getattr(msg, attribute)())
    yield lambda: pub.publish(msg)
    yield lambda: pub.publish(msg, meta={"a": 1})


@pytest.mark.parametrize("seed", range(4))
def test_a_message_of_another_program_raises_nothing_but_errors_of_dlx(c, pair, monkeypatch, seed):
    pub, sub = pair
    rng = random.Random(seed)
    encode = _meta.encode
    x = pub.zeros(4, "uint8")
    with c.publisher("elsewhere") as other:
        for n in range(N_CASES // 4):
            data, keys = metadata(rng)[:META_MAX], names(rng)
            message = {key: x for key in keys} if keys and n % 4 else x
            with monkeypatch.context() as m:
                m.setattr(_meta, "encode", bytes)  # as it is, as another program writes it
                pub.publish(message, meta=data, share=True)
            assert _meta.encode is encode
            with sub.take() as msg:
                for call in use(msg, other):
                    try:
                        call()
                    except dlx.Error:
                        pass
                    except BaseException as e:
                        raise AssertionError((seed, n, data, keys)) from e


@pytest.mark.parametrize(
    "meta, want",
    [
        (b'{"a":{"dlx.complex":[%s,0]}}', {"a": {"dlx.complex": [int(DIGITS), 0]}}),
        (b'{"a":{"dlx.float":%s}}', {"a": {"dlx.float": int(DIGITS)}}),
    ],
)
def test_numbers_that_do_not_fit_stay_as_they_came(pair, monkeypatch, meta, want):
    pub, sub = pair
    monkeypatch.setattr(_meta, "encode", bytes)
    pub.publish(b"x", meta=meta % DIGITS.encode())
    assert sub.take().meta == want


def test_a_structure_that_does_not_fit_is_passed_over(pair, monkeypatch):
    pub, sub = pair
    monkeypatch.setattr(_meta, "encode", bytes)
    tree = b'{"dlx.tree":{"y":{"dlx.complex":[%s,0]}}}' % DIGITS.encode()
    pub.publish({"a/b": b"x", "a/c": b"y"}, meta=tree)
    msg = sub.take()
    assert len(msg) == 2 and list(msg) == ["a/b", "a/c"] and msg["a/b"].tobytes() == b"x"


def test_the_name_of_a_program_is_any_bytes(c, peer):
    """Lists of publishers and links have the others, too."""
    other = peer(
        """
        import ctypes
        ctypes.CDLL(None).prctl(15, b"\\xff\\xfe", 0, 0, 0)
        c = dlx.connect()
        pub, sub = c.publisher("odd"), c.subscribe("mine")
        say("here")
        hear()
        """
    )
    with c.publisher("mine") as pub:
        assert other.hear() == "here"
        pub.wait(1)
        (found,) = [p for p in c.publishers() if p["topic"] == "odd"]
        (mine,) = [p for p in c.publishers() if p["topic"] == "mine"]
        (link,) = c.links(mine["publisher"])
        assert found["pid"] == link["pid"] == other.process.pid
        other.say("end")
        other.end()
