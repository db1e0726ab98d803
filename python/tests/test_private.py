# SPDX-License-Identifier: Apache-2.0
"""Tensors that may be written to: subscribe(..., private=True)."""

import asyncio
import ctypes

import dlx
import numpy as np
import pytest
from conftest import PATIENCE

SMALL, LARGE = 1000, 1 << 20  # bytes: copied at once, and page by page


def take_async(sub):
    async def run():
        return await sub.take_async()

    return asyncio.run(run())


TAKES = {
    "take": lambda sub: sub.take(),
    "take_many": lambda sub: sub.take_many(1)[0],
    "loop": next,
    "async": take_async,
}
USES = {
    "numpy": np.asarray,
    "DLPack": np.from_dlpack,
    "DLPack of the item": lambda msg: np.from_dlpack(msg[0]),
    "method": lambda msg: msg.numpy(),
    "loop": lambda msg: np.asarray(next(iter(msg))),
    "buffer": lambda msg: np.frombuffer(memoryview(msg), "uint8"),
}


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("use", USES)
def test_writes_to_a_private_message_are_seen_nowhere_else(c, take, use, size):
    with (
        c.publisher("a") as pub,
        c.subscribe("a", timeout=PATIENCE) as other,
        c.subscribe("a", timeout=PATIENCE, private=True) as sub,
    ):
        pub.publish(np.full(size, 7, "uint8"))
        msg = TAKES[take](sub)
        a = USES[use](msg)
        assert a.size == size and (a == 7).all()
        assert a.flags.writeable or "DLPack" in use  # which NumPy before 2.1 does not ask
        ctypes.memset(a.ctypes.data, 9, size)
        assert (np.asarray(other.take()) == 7).all() and (a == 9).all()
        assert (np.asarray(msg) == 7).all()  # each is one of its own
        assert not msg[0].readonly and msg[0].copied == (size == SMALL)


def test_private_tensors_are_for_those_who_cannot_be_told_that_memory_is_read_only(c):
    name = ctypes.pythonapi.PyCapsule_GetName
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    with (
        c.publisher("a") as pub,
        c.subscribe("a", timeout=PATIENCE) as other,
        c.subscribe("a", timeout=PATIENCE, private=True) as sub,
    ):
        pub.publish(b"1234")
        with pytest.raises(BufferError):
            other.take().__dlpack__()
        msg = sub.take()
        assert name(msg.__dlpack__()) == name(msg[0].__dlpack__()) == b"dltensor"


def test_a_private_message_is_published_as_any_other(c):
    with c.publisher("a") as pub, c.subscribe("a", timeout=PATIENCE, private=True) as sub:
        pub.publish({"x": b"12", "y": b"34"}, meta={"k": 1})
        msg = sub.take()
        assert pub.publish(msg).n_copied == 2
        again = sub.take()
        assert list(again) == ["x", "y"] and again.meta == {"k": 1}
        assert again["y"].tobytes() == b"34"


def test_private_views_hold_the_message_and_give_it_back(c):
    with c.publisher("a") as pub, c.subscribe("a", timeout=PATIENCE, private=True) as sub:
        pub.publish(bytes(LARGE))
        a = np.asarray(sub.take())
        assert sub.stats()["n_held"] == 1
        del a
        assert sub.stats()["n_held"] == 0
        pub.publish(bytes(SMALL))
        a = np.asarray(sub.take())
        assert sub.stats()["n_held"] == 0 and not a.any()
