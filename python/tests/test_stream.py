# SPDX-License-Identifier: Apache-2.0
"""Publishers, subscriptions and messages: what docs/PYTHON.md promises, in one process and across
two.
"""

import gc
import os
import threading
import time
import warnings

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, until


def test_a_tensor_in_shared_memory_is_passed_without_a_copy(pair):
    pub, sub = pair
    x = pub.empty((3, 4), "uint8")
    np.asarray(x)[:] = 7
    report = pub.publish(x)
    assert report == (1, False, 0, 0, 1) and report.seq == 1 and not report.copied
    assert report.subscribers == 1
    assert x.published and repr(x) == "<dlx.Tensor, published>"
    with pytest.raises(ValueError, match="was published"):
        x.shape
    with sub.take() as msg:
        assert (msg.topic, msg.seq, msg.gap, len(msg.tensors), msg.meta) == (
            "cam/front",
            1,
            0,
            1,
            None,
        )
        assert abs(msg.monotonic_ns - time.monotonic_ns()) < PATIENCE * 1e9
        y = msg[0]
    assert msg.released
    assert (y.shape, y.strides, y.dtype, y.ndim, y.nbytes, y.itemsize) == (
        (3, 4),
        (4, 1),
        "uint8",
        2,
        12,
        1,
    )
    assert y.readonly and not y.copied and (np.asarray(y) == 7).all()
    with pytest.raises(dlx.Closed):
        msg[0]


def test_a_view_of_memory_of_the_publisher_is_copied_with_a_warning_once(pair):
    """A view whose dlx.Tensor is gone, as in x = torch.from_dlpack(pub.empty(...))."""
    pub, sub = pair
    view = np.asarray(pub.zeros((4, 5)))
    with pytest.warns(dlx.CopyWarning, match="message 1 was copied, though 1 .* memory of empty"):
        assert pub.publish({"a": view, "b": np.zeros(3)}).n_copied == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pub.publish(view).copied and pub.publish_many([view[1:]]).copied
    assert [sub.take()[0].shape for _ in range(3)] == [(4, 5), (4, 5), (3, 5)]


def test_a_copy_of_other_memory_is_no_reason_for_a_warning(pair):
    pub, sub = pair
    kept = pub.zeros(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pub.publish(np.ones(5)).copied
        assert pub.publish(sub.take()).copied
    assert not pub.publish(kept).copied


def test_numbers_of_numpy_are_numbers(pair, c):
    pub, sub = pair
    pub.publish(b"x", monotonic_ns=np.int64(12345))
    assert sub.take().monotonic_ns == 12345
    with pytest.raises(TypeError):
        pub.publish(b"x", monotonic_ns=1.5)
    (found,) = c.publishers("cam/front")
    assert len(c.links(np.uint64(found["publisher"]))) == 1


def test_a_publisher_has_the_id_that_messages_and_lists_have(pair, c):
    pub, sub = pair
    pub.publish(b"x")
    (found,) = c.publishers("cam/front")
    assert pub.id == sub.take().publisher == found["publisher"]
    with pytest.raises(AttributeError):
        pub.id = 1
    pub.close()
    with pytest.raises(dlx.Closed, match="publisher of cam/front is closed"):
        pub.id  # noqa: B018


def test_a_tensor_that_arrays_were_made_of_is_copied_and_strict_refuses(pair):
    pub, sub = pair
    x = pub.zeros(5, "int32")
    a = np.asarray(x)
    with pytest.warns(dlx.CopyWarning, match="is copied"):
        report = pub.publish(x)
    assert report.copied and report.copied_bytes == 20 and not x.published
    with pytest.raises(dlx.WouldCopy, match="1 array.* still there"):
        pub.publish(x, strict=True)
    a[:] = 9  # the message is not touched
    assert (np.asarray(sub.take()) == 0).all()
    del a
    assert not pub.publish(x, strict=True).copied and x.published
    assert (np.asarray(sub.take()) == 9).all()
    with pytest.raises(
        dlx.WouldCopy,
        match=r"is not the dlx.Tensor that empty\(\) of this publisher returned.* which "
        r"strict=True forbids",
    ):
        pub.publish(b"abc", strict=True)


def test_a_look_at_a_tensor_does_not_have_it_copied(pair):
    """Libraries ask by hasattr() for protocols that they do not use then."""
    pub, sub = pair
    x = pub.zeros(5, "int32")
    assert not hasattr(x, "__array_interface__") and not hasattr(x, "__cuda_array_interface__")
    for name in dir(x):
        getattr(x, name, None)
    np.asarray(x)[:] = 3
    assert not pub.publish(x, strict=True).copied
    y = pub.zeros(5, "int32")
    pub.publish(y, share=True)
    assert hasattr(y, "__array_interface__")  # it is read-only
    assert hasattr(sub.take()[0], "__array_interface__")
    assert hasattr(dlx.tensor(b"x"), "__array_interface__")


def test_share_keeps_the_tensor_and_publishes_it_again_without_a_copy(pair):
    pub, sub = pair
    x = pub.empty(4, "int16")
    a = np.asarray(x)
    a[:] = 3
    for _ in range(3):
        assert not pub.publish(x, share=True, strict=True).copied
    assert x.readonly and not x.published and (np.asarray(sub.take()) == 3).all()
    del a
    assert not pub.publish(x).copied and x.published


def test_tensors_of_another_publisher_and_received_ones_are_copied(c, pair):
    pub, sub = pair
    with c.publisher("other") as other:
        x = other.zeros(8)
        assert pub.publish(x).copied and not x.published
        pub.publish({"a": b"12", "b": b"34"}, meta={"k": [1]})
        sub.take()
        msg = sub.take()
        with c.subscribe("other", timeout=PATIENCE) as s:
            assert other.publish(msg).n_copied == 2 and other.publish(msg["a"]).copied
            again = s.take()
            assert list(again) == ["a", "b"] and again.meta == {"k": [1]}
            assert again["b"].tobytes() == b"34"


def test_sets_have_names_metadata_and_an_order(pair):
    pub, sub = pair
    report = pub.publish(
        {"rgb": np.ones((2, 2), np.uint8), "boxes": [] or np.zeros((0, 4))},
        meta={"t": np.float64(1.5)},
    )
    assert report.n_copied == 2
    msg = sub.take()
    # the report says so, and the receiver need not know
    assert not any(t.copied for t in msg.values())
    assert list(msg.keys()) == list(msg) == msg.names == ["rgb", "boxes"] and "rgb" in msg
    assert "x" not in msg and 0 not in msg
    assert msg.meta == {"t": 1.5} and msg.meta_bytes == b'{"t":1.5}'
    assert msg["boxes"].shape == (0, 4)
    assert (
        {k: v.shape for k, v in dict(msg).items()}
        == {"rgb": (2, 2), "boxes": (0, 4)}
        == {k: v.shape for k, v in msg.items()}
    )
    assert [t.dtype for t in msg.values()] == ["uint8", "float64"] and msg[-1].dtype == "float64"
    with pytest.raises(KeyError, match='has no tensor "nope"') as e:
        msg["nope"]
    assert isinstance(e.value, dlx.NotFound) and e.value.name == "NOT_FOUND" and e.value.code == -21
    with pytest.raises(IndexError):
        msg[2]
    pub.publish([b"a", b"b"], meta=b"\x00raw")
    msg = sub.take()
    assert msg.names == [None, None] and [t.tobytes() for t in msg] == [b"a", b"b"]
    assert msg.meta == b"\x00raw"


def test_names_go_on_as_they_came(pair):
    pub, sub = pair
    pub.publish({"": b"first has none", "\u00e4": b"2"})
    for _ in range(2):
        msg = sub.take()
        assert list(msg) == [0, "\u00e4"] and msg["\u00e4"].tobytes() == b"2"
        pub.publish(msg)
    for bad in ({"a\0b": b"x"}, {"\ud800": b"x"}):
        with pytest.raises(ValueError):
            pub.publish(bad)
    for bad in ({b"a": b"x"}, {None: b"x"}):
        with pytest.raises(TypeError, match="names of tensors are str"):
            pub.publish(bad)


def test_names_that_are_no_utf8_are_found_by_their_keys(pair):
    pub, sub = pair
    name = os.fsdecode(b"a\xff")
    pub.publish({name: b"1", "": b"2", "b": b"3"})
    for _ in range(2):
        msg = sub.take()
        assert list(msg) == [name, 1, "b"] and msg[name].tobytes() == b"1"
        assert list(dict(msg)) == list(msg)
        assert all(key in msg for key in msg.keys())
        assert not any(key in msg for key in (0, 2, 3, -1, 2**70, "c", "b\0", "\ud800", None, b"b"))
        pub.publish(msg)
    with pytest.raises(ValueError, match="null"):
        msg["b\0"]
    pub.publish(dict(zip([name, "x"], [b"1", b"2"], strict=True)))
    assert list(sub.take()) == list(msg) and list(sub.take()) == [name, "x"]
    with pytest.raises(ValueError, match="NUL"):
        pub.publish({name + "\0": b"1"})


def test_a_set_is_refused_as_a_whole_and_says_which_tensor(pair):
    pub, sub = pair
    x = pub.empty(2)
    with pytest.raises(TypeError, match=r"^tensors\['bad'\]: no tensor"):
        pub.publish({"x": x, "bad": object()})
    for bad in ({}, [], {"x" * 1024: x}):
        with pytest.raises(dlx.InvalidError):
            pub.publish(bad)
    for bad in ({1: x, "b": x}, {"a": x, "b": object()}, 7, "text", None):
        with pytest.raises(TypeError):
            pub.publish(bad)
    with pytest.raises(dlx.InvalidError):
        pub.publish({"a": x, "b": x})
    with pytest.raises(dlx.InvalidError):
        pub.publish(x, meta=b"x" * 65537)
    assert not pub.publish({"x": x}).copied and sub.take().seq == 1


def test_like_and_dtypes(pair):
    pub, _ = pair
    assert (t := pub.empty_like(np.zeros((2, 3), np.complex64))).shape == (2, 3)
    assert t.dtype == "complex64"
    many = pub.empty_like({"a": np.zeros(3, "f2"), "b": b"xyz"})
    assert {k: (t.shape, t.dtype) for k, t in many.items()} == {
        "a": ((3,), "float16"),
        "b": ((3,), "uint8"),
    }
    assert not pub.publish(many).copied and many["a"].published
    same = "uint8 bfloat16 complex32 int1 complex64x2 float8_e4m3fn int4 float32x4 77:8:1".split()
    names = dict(zip(same, same, strict=True))
    names |= {"f4": "float32", "<f8": "float64", "single": "float32", "d": "float64"}
    names |= {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    names |= {"float": "float64", "int": "int64", "complex": "complex128", np.int16: "int16"}
    names |= {"torch.float32": "float32", "torch.float4_e2m1fn_x2": "float4_e2m1fnx2"}
    names |= {np.dtype("<i8"): "int64", np.dtype("|u1"): "uint8", np.dtype("u4"): "uint32"}
    for given, name in names.items():
        assert pub.empty((), given).dtype == name
    for bad in (">f4", "object", object, "uint7", None, "float32x0", "", "x4", "torch.float"):
        with pytest.raises(TypeError, match="no data type"):
            pub.empty(1, bad)
    for bad in (np.dtype(">f4"), np.dtype(">i8"), np.zeros(1, ">u2")):
        with pytest.raises(TypeError, match="native byte order"):
            pub.empty(1, bad)
    for bad in ((-1,), (1,) * 65, (2**40, 2**40)):
        with pytest.raises(dlx.InvalidError):
            pub.empty(bad)
    for bad in ("ab", 1.5, None, (1.5,)):
        with pytest.raises(TypeError):
            pub.empty(bad)


def test_loops_end_when_the_last_publisher_leaves_or_raise_a_timeout(c, peer):
    with c.subscribe("a/x", timeout=PATIENCE) as sub:
        p = peer("""
            with c.publisher("a/x", history=8) as pub:
                pub.wait(1, 60)
                for i in range(3): pub.publish(bytes([i]))
        """)
        assert [m[0].tobytes() for m in sub] == [b"\0", b"\1", b"\2"]
        p.end()
    with c.subscribe("a/*") as sub:
        with pytest.raises(dlx.Timeout, match=r"topic a/\*: no message within 0.01 s"):
            sub.take(timeout=0.01)
        sub.timeout = 0.02
        with pytest.raises(TimeoutError, match="0.02 s"):
            for _ in sub:
                pass
        with pytest.raises(dlx.Timeout, match="topic .* has no message"):
            sub.take(timeout=0)


@pytest.mark.parametrize(
    "use", [lambda msg, key: msg[key], lambda msg, key: msg.private(key)], ids=["item", "private"]
)
def test_a_message_that_its_own_key_releases_is_closed(pair, use):
    pub, sub = pair

    class Key:
        def __index__(self):
            msg.release()
            return 0

    for data in (b"small", bytes(1 << 20)):
        pub.publish([data] * 8)
        msg = sub.take()
        with pytest.raises(dlx.Closed, match="message was released"):
            use(msg, Key())


@pytest.mark.parametrize(
    "use",
    [
        lambda msg, pub: msg.tensors,
        lambda msg, pub: msg.names,
        lambda msg, pub: repr(msg),
        lambda msg, pub: pub.publish(msg),
    ],
    ids=["tensors", "names", "repr", "publish"],
)
def test_a_message_that_is_released_by_the_collection_of_garbage_is_closed_or_there(pair, use):
    """Up to Python 3.11 that comes in the midst of a call."""
    pub, sub = pair

    class Garbage:
        def __init__(self, msg):
            self.me, self.msg = self, msg

        def __del__(self):
            self.msg.release()

    threshold = gc.get_threshold()
    for _ in range(10):
        pub.publish({str(i): bytes(1) for i in range(100)})
        msg = sub.take()
        gc.freeze()
        Garbage(msg)
        gc.set_threshold(1)
        try:
            use(msg, pub)
        except dlx.Closed:
            assert msg.released
        finally:
            gc.set_threshold(*threshold)
            gc.unfreeze()
        while sub._poll():
            pass


def test_latest_skips_and_counts(c):
    with c.publisher("a", history=4) as pub, c.subscribe("a", latest=True) as sub:
        for i in range(3):
            pub.publish(bytes([i]))
        assert sub.take()[0].tobytes() == b"\2"
        stats = sub.stats()
        assert stats["taken"] == 1 and stats["skipped"] == 2 and stats["n_publishers"] == 1
        with c.subscribe("a", history=4) as late, c.subscribe("a", history=None) as none:
            assert [late.take()[0].tobytes() for _ in range(3)] == [b"\0", b"\1", b"\2"]
            with pytest.raises(dlx.Timeout):
                none.take(timeout=0)


def test_a_blocking_publisher_waits_and_names_who_is_in_the_way(c):
    with c.publisher("a", on_full="block", depth=4, timeout=0.01) as pub:
        with c.subscribe("a", reliable=True, max_held=1) as sub:
            with pytest.raises(dlx.Timeout, match="behind"):
                for _ in range(20):
                    pub.publish(b"x")
            with pytest.raises(dlx.Full, match="depth 4"):
                pub.publish(b"x", timeout=0)
            thread = threading.Thread(target=lambda: [sub.take(PATIENCE).seq for _ in range(8)])
            thread.start()
            for _ in range(4):
                pub.publish(b"y", timeout=PATIENCE)
            thread.join()
            assert pub.stats()["refused"] == 2
    with c.publisher("b") as pub, pytest.raises(dlx.InvalidError, match="b"):
        c.subscribe("b", reliable=True)


def cpu_of_a_wait(sub):
    """Seconds of the processor that this thread has in a wait of 0.2 s."""
    start = time.thread_time()
    with pytest.raises(dlx.Timeout):
        sub.take(timeout=0.2)
    return time.thread_time() - start


def test_how_long_a_take_is_busy(c):
    """0 is "never" and what has no end "always", not the reverse."""
    for spin, busy in (
        (0, False),
        ("never", False),
        (float("inf"), True),
        (1e10, True),
        ("always", True),
    ):
        with c.subscribe("a", spin=spin) as sub, c.publisher("a"):
            until(lambda: (cpu_of_a_wait(sub) > 0.02) == busy, f"spin={spin}")


def test_lists_tell_all_that_the_daemon_knows(c, pair):
    pub, sub = pair
    (info,) = c.publishers()
    assert info["topic"] == "cam/front" and info["history"] == 8 and info["on_full"] == "drop"
    assert info["depth"] == 16
    (link,) = c.links(info["publisher"])
    assert link["max_held"] == 16 and not link["latest"] and link["behind"] == 0
    assert link["blocks"] is False
    pub.publish(b"one")
    pub.publish(b"two")
    assert c.links(info["publisher"])[0]["behind"] == 2
    daemon = c.daemon()
    assert daemon["n_clients"] == 1 and daemon["memory"] == "memfd" and daemon["protocol"][0] == 2
    with pytest.raises(dlx.NotFound):
        c.links(12345)
    assert [e.kind for e in pub.events()] == ["joined"] and pub.events() == []
    pub.wait(1, 0)
    with pytest.raises(dlx.Timeout, match="1"):
        pub.wait(2, 0.01)
    assert dlx.dlpack_info()["dlpack"] == (1, 3) and dlx.__version__ == daemon["version"]


def test_holding_too_many_is_told(c):
    with c.publisher("a") as pub, c.subscribe("a", max_held=2) as sub:
        for _ in range(3):
            pub.publish(b"x")
        kept = [sub.take()[0], np.asarray(sub.take())]
        with pytest.raises(dlx.TooManyHeld, match="2"):
            sub.take(timeout=0)
        del kept[0]
        sub.take(timeout=0)


def test_a_publisher_bounds_what_is_held(c):
    with c.publisher("a", max_held=1) as few, c.publisher("b", max_held_bytes=2) as small:
        for pub, topic, word in ((few, "a", "the publisher"), (small, "b", "max_held_bytes")):
            with c.subscribe(topic, timeout=PATIENCE) as sub:
                for _ in range(2):
                    pub.publish(b"xy")
                kept = sub.take()
                with pytest.raises(dlx.TooManyHeld, match=word):
                    sub.take(timeout=0)
                kept.release()
                sub.take().release()
            events = []
            until(lambda: events.extend(pub.events()) or len(events) == 2, "joined and left")
            assert pub.stats()["cut"] == 0 and [e.reason for e in events] == ["", ""]


def test_private_views_may_be_written_to(pair):
    pub, sub = pair
    pub.publish({"a": np.arange(6, dtype=np.float32)})
    msg = sub.take()
    t = msg.private("a")
    assert t.copied and not t.readonly
    np.asarray(t)[0] = 42
    assert np.asarray(msg["a"])[0] == 0 and np.asarray(t)[0] == 42
    with pytest.raises(KeyError):
        msg.private("b")


def test_large_private_views_copy_what_is_written_to(c):
    """The publisher does not use their memory again before they are gone. (Before Linux 5.13 they
    are copies.)
    """
    with c.publisher("a", depth=2) as pub, c.subscribe("a", max_held=1, timeout=PATIENCE) as sub:
        frame = np.arange(1 << 20, dtype=np.uint8)
        pub.publish(frame)
        with sub.take() as msg:
            t, other = msg.private(0), msg.private(0)
            if t.copied:
                pytest.skip("the kernel has no copy-on-write views of a descriptor that is closed")
            view = np.asarray(t)
            view[:4096] = 9
            assert np.array_equal(np.asarray(other), frame)
            assert np.array_equal(np.asarray(msg), frame)
            del other
        del t
        for _ in range(20):
            pub.publish(frame + 1)
        assert np.all(view[:4096] == 9) and np.array_equal(view[4096:], frame[4096:])
        with pytest.raises(dlx.TooManyHeld):
            sub.take()
        del view
        sub.take()


def test_closed_handles_say_so(c):
    pub, sub = c.publisher("a"), c.subscribe("a")
    x = pub.empty(1)
    for handle in (pub, sub):
        handle.close()
        handle.close()
        assert handle.closed and "closed" in repr(handle)
        with pytest.raises(dlx.Closed, match="of a is closed"):
            handle.stats()
    with pytest.raises(ValueError):
        pub.publish(x)
    with pytest.raises(dlx.Closed):
        sub.take_many(9)
    assert x.shape == (1,)
    c.close()
    with pytest.raises(dlx.Closed):
        c.publisher("b")


VALUES = """
c.publisher("a//b")
c.publisher("a", history=9999)
c.publisher("a", on_full="x")
c.publisher("a", history=-1)
c.subscribe("a", timeout=-1)
c.subscribe("a", spin="x")
c.subscribe("a", max_held=5000)
c.publisher("a", retain_for="x")
c.get("a", float("nan"))
c.publisher("a", depth=4097)
c.publisher("a", depth=-1)
c.publisher("a", max_held=4097)
c.publisher("a", max_held_bytes=-1)
c.publisher("a", retain=9, history=2)
c.publisher("a", retain=1, retain_for=0)
dlx.connect(timeout=0)
"""
ARGUMENTS = """
c.publisher()
c.publisher("a", "b")
c.publisher("a", histroy=1)
c.publisher("a", slots=4)
c.get(3)
c.subscribe("a", topic="b")
c.subscribe("a", timeout="1")
dlx.Tensor()
c.links("x")
"""


@pytest.mark.parametrize("call", VALUES.split("\n")[1:-1])
def test_values_that_cannot_be_are_refused(c, call):
    with pytest.raises(ValueError):
        eval(call)


@pytest.mark.parametrize("call", ARGUMENTS.split("\n")[1:-1])
def test_arguments_that_are_none_are_refused(c, call):
    with pytest.raises(TypeError):
        eval(call)


def test_no_daemon_is_a_connection_error(tmp_path, nobody_else):
    with pytest.raises(dlx.DaemonError, match="nothing") as e:
        dlx.connect(tmp_path / "nothing")
    assert isinstance(e.value, ConnectionError) and e.value.name == "NO_DAEMON"
    with pytest.raises(ConnectionError):
        dlx.connect(autospawn=False)
