# SPDX-License-Identifier: Apache-2.0
"""Nothing is kept: references, memory of Python, file descriptors and maps stay as they are over
many rounds.
"""

import ctypes
import gc
import sys

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, count_fds, count_maps

ROUNDS = 200


def round_trip(c, pub, sub):
    x = pub.empty((4, 5), "uint8")
    np.asarray(x)[:] = 1
    pub.publish(x)
    pub.publish({"a": np.ones(7), "b": b"bytes", "c": [1] and bytearray(b"x")}, meta={"k": "v"})
    pub.publish(pub.empty_like({"p": np.zeros(3), "q": np.zeros((2, 2), "f2")}), share=True)
    msg = sub.take()
    t = msg[0]
    capsule = t.__dlpack__(max_version=(1, 0))
    np.asarray(msg), t.tobytes(), t.copy(), t.shape, t.strides, t.dtype, repr(t)
    t.__array_interface__, memoryview(t), capsule
    np.from_dlpack(t.as_legacy()), t.__dlpack__(max_version=(1, 0), copy=True)
    t.__dlpack__(copy=True), t.__reduce__()
    with sub.take() as msg:
        list(msg), list(msg.items()), msg.tensors, msg.names, msg.meta, msg.meta_bytes
        msg.private("a"), "a" in msg, dict(msg), repr(msg), msg.topic
        pub.publish(msg)
        for bad in (
            lambda: msg["x"],
            lambda: msg[9],
            lambda: np.from_dlpack(msg),
            lambda: msg.__dlpack__(stream=3),
            lambda: pub.publish({"a": {"b": 3}}),
            lambda: pub.publish(object()),
            lambda: pub.publish(b"x", strict=True),
            lambda: pub.publish(b"x", nope=1),
            lambda: pub.empty("x"),
            lambda: pub.empty(1, "x"),
            lambda: pub.publish(np.zeros(2, ">f4")),
            lambda: c.publisher("//"),
            lambda: c.subscribe("//"),
            lambda: c.get("nothing", 0),
            lambda: c.links(1),
        ):
            with pytest.raises(Exception):
                bad()
    sub.take(), sub.take()
    pub.publish({"x": {"y": [np.ones(3), 1]}, "n": None}, meta={"k": (b"1",)})
    msg = sub.take()
    dict(msg), msg["x"], msg["n"], msg.get("z"), len(msg), msg.meta, pub.publish(msg, meta=b"{}")
    sub.take().meta
    for bad in ({"x": {1: b"1", "a": b"2"}}, {"x": {"y": object()}}, {"x": [b"1", {"": 1}]}):
        with pytest.raises(Exception):
            pub.publish(bad)
    pub.publish_many([pub.empty(3), np.ones(2), {"a": b"x"}, t, pub.empty(1)])
    assert len(sub.take_many(4)) == 4 and len(sub.take_many(4)) == 1
    with pytest.raises(dlx.WouldCopy):
        pub.publish_many([pub.empty(3), b"x", pub.empty(3)], strict=True)
    with pytest.raises(TypeError):
        pub.publish_many([pub.empty(3), {"a": object()}])
    assert len(sub.take_many(9, 0)) == 1
    with pytest.raises(dlx.Timeout):
        sub.take(0)
    pub.stats(), sub.stats(), pub.events(), sub.events(), c.publishers(), sub.fileno(), sub._poll()
    dlx.dlpack_info()


class Mallinfo(ctypes.Structure):
    _fields_ = [
        (x, ctypes.c_size_t)
        for x in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks "
        "keepcost".split()
    ]


def count_all(*handles):
    """Counts that must not grow: references, then descriptors and maps; and that may grow a little:
    blocks of Python, bytes of malloc.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    gc.collect()
    info = libc.mallinfo2()
    return (
        [sys.getrefcount(x) for x in (*handles, dlx.Tensor, dlx.Message, dlx.Report, dlx.Request)],
        count_fds(),
        count_maps(),
        sys.getallocatedblocks(),
        info.uordblks + info.hblkhd,
    )


def work_round(c, pub, sub):
    pub.publish({"x": np.ones(3)}, meta={"k": 1})
    with pytest.raises(ZeroDivisionError), sub.take() as task:
        _ = 1 / 0
    task = sub.take()
    task.renew(), task.attempt, c.groups(), c.claims(*group_of(c)), task.give_back()
    for bad in (
        task.done,
        lambda: [sub.take(0), sub.take(0)],
        lambda: pub.drain(0),
        lambda: c.claims(1, 1),
        lambda: c.drop_queue("b"),
        lambda: c.publisher("c", groups=["g", "a b"]),
        lambda: c.publisher("c", groups=["g", 7]),
        lambda: c.subscribe("b", group="g", lease=5, dead_letters="a//b"),
        lambda: c.subscribe("b", group="g", max_attempts=0),
    ):
        with pytest.raises(Exception):
            bad()
    with sub.take() as task:
        task["x"]
    pub.drain(PATIENCE)
    pub.stats(), sub.stats(), sub.events()


def call_round(c, k, service):
    answers = (
        lambda r: r.reply({"y": np.asarray(r)}, meta={"k": 1}),
        lambda r: r.reply(r.empty_like({"a": np.ones(3), "b": np.ones(2)})),
        lambda r: r.error("no", 3),
        lambda r: r.release(),
        lambda r: None,
    )
    for answer in answers:
        k._begin(k.zeros(3), timeout=PATIENCE, meta={"k": 1})
        with service.take() as request:
            request.meta, request.deadline, request.cancelled, repr(request)
            answer(request)
        while k._take() is None:
            pass
    k._begin(b"x")
    with pytest.raises(ZeroDivisionError), service.take():
        _ = 1 / 0
    request = None
    for bad in (
        lambda: k.call(b"x", timeout=0),
        lambda: k.call(object()),
        lambda: k.call(b"x", strict=True),
        lambda: k.wait(-1),
        lambda: service.take(0),
        lambda: c.caller("a//b"),
        lambda: c.serve("a//b"),
    ):
        with pytest.raises(Exception):
            bad()
    while k._take() is None:
        pass
    k.stats(), service.stats(), k.fileno(), service.fileno()


def make_calls(c):
    return c.caller("s"), c.serve("s", timeout=PATIENCE)


def group_of(c):
    (group,) = c.groups("b")
    return group["publisher"], group["group"]


def make_stream(c):
    return c.publisher("a", history=8), c.subscribe("a", timeout=PATIENCE)


def make_queue(c):
    return c.publisher("b", groups=["g"]), c.subscribe("b", group="g", timeout=PATIENCE)


@pytest.mark.parametrize(
    ("make", "round_trip"),
    [(make_stream, round_trip), (make_queue, work_round), (make_calls, call_round)],
)
def test_nothing_is_kept(c, make, round_trip):
    pub, sub = make(c)
    for _ in range(20):
        round_trip(c, pub, sub)
    for _ in range(6):  # caches of others fill in the first
        refs, fds, maps, blocks, heap = count_all(c, pub, sub)
        none = sys.getrefcount(None)
        for _ in range(ROUNDS):
            round_trip(c, pub, sub)
        now = count_all(c, pub, sub)
        assert (refs, fds) == now[:2]
        if now[2] <= maps + 2 and now[3] - blocks < ROUNDS / 2 and now[4] - heap < ROUNDS * 16:
            break
    assert now[2] <= maps + 2 and now[3] - blocks < ROUNDS / 2 and now[4] - heap < ROUNDS * 16
    assert abs(sys.getrefcount(None) - none) < ROUNDS / 2 and sub.stats()["n_held"] == 0


def test_handles_that_come_and_go_leave_nothing(daemon):
    def use():
        with (
            dlx.connect() as c,
            c.publisher("a", retain=1, retain_for="latched") as pub,
            c.subscribe("a/*"),
            c.subscribe("a") as sub,
            c.publisher("b", groups=["g"]) as queue,
            c.subscribe("b", group="g") as worker,
            c.caller("s") as k,
            c.serve("s") as service,
            c.observe("b") as observer,
        ):
            pub.publish(b"x")
            assert sub.take(PATIENCE).qos.retain_for == "latched"
            c.get("a", PATIENCE)
            while observer.next(PATIENCE).kind != "all":
                pass
            queue.publish(b"x")
            with worker.take(PATIENCE):
                pass
            k._begin(b"x")
            with service.take(PATIENCE) as request:
                request.reply(b"y")

    for _ in range(3):
        use()
    before, connection = count_fds(), sys.getrefcount(dlx.Connection)
    maps = count_maps()
    for _ in range(30):
        use()
    gc.collect()
    # Fewer than one for each time: the C library keeps a stack or two, and heaps, of the threads
    # that connect.
    assert before == count_fds() and sys.getrefcount(dlx.Connection) < connection + 10
    assert count_maps() < maps + 20
