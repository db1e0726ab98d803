# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, asyncio, the end of the interpreter, the private daemon, dlx.debug()."""

import asyncio
import gc
import inspect
import os
import re
import signal
import threading
import time

import dlx
import numpy as np
import pytest
from conftest import (
    DAEMON,
    PATIENCE,
    count_fds,
    in_child,
    is_in_use,
    run_daemon,
    run_threads,
    stopped,
    until,
)

# -- threads ---------------------------------------------------------------------------------------


def test_other_threads_run_while_one_waits_and_one_at_a_time_may_use_a_handle(c):
    sub = c.subscribe("a")
    said = []

    def wait():
        try:
            sub.take()
        except dlx.Closed as e:
            said.append(str(e))

    thread = threading.Thread(target=wait)
    thread.start()

    until(lambda: is_in_use(sub), "waiting")
    with pytest.raises(
        dlx.InUse, match="subscription of a is in use by another thread: make one for each thread$"
    ):
        sub.take(0)
    sub.close()
    thread.join(PATIENCE)
    assert said == ["the subscription of a is closed"] and sub.closed


def test_many_threads_with_handles_of_their_own(c):
    def work(i):
        with c.publisher(f"t/{i}") as pub, c.subscribe(f"t/{i}", timeout=PATIENCE) as sub:
            for k in range(200):
                pub.publish(np.full(100, k))
                assert np.asarray(sub.take())[99] == k

    run_threads([lambda i=i: work(i) for i in range(4)])


# -- asyncio ---------------------------------------------------------------------------------------


def test_async_loops_wait_on_the_descriptor(c, peer):
    async def main():
        ticks, sub = 0, c.subscribe("a/*", publishers=1)
        p = peer("""
            pub = c.publisher("a/b", history=16)
            pub.wait(1, 60)
            for _ in range(5):
                pub.publish(hear().encode()); say("sent")
            hear(); pub.close()
        """)

        async def count():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        counter = asyncio.create_task(count())
        got = []
        p.say("0")
        async for msg in sub:
            got.append(msg[0].tobytes())
            p.say(str(len(got)))
        counter.cancel()
        p.end()
        assert got == [b"0", b"1", b"2", b"3", b"4"] and ticks > 0 and threading.active_count() == 1
        sub = c.subscribe("a/*", publishers=1)
        with pytest.raises(dlx.Timeout, match="0.01 s"):
            await sub.take_async(timeout=0.01)
        sub.timeout = 0.01
        with pytest.raises(TimeoutError):
            async for msg in sub:
                pass
        with c.publisher("a/x") as pub:
            pub.publish(b"y")
            assert (await sub.take_async(PATIENCE))[0].tobytes() == b"y"
            task = asyncio.create_task(sub.take_many_async(3, PATIENCE))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            pub.publish_many([b"1", b"2", b"3", b"4"])
            got = await task + await sub.take_many_async(3)
            assert b"".join(m[0].tobytes() for m in got) == b"1234"
            with pytest.raises(dlx.Timeout, match="0.01 s"):
                await sub.take_many_async(3, timeout=0.01)
        with pytest.raises(dlx.PublisherGone):
            await sub.take_async(PATIENCE)

    asyncio.run(main())


def test_a_cancelled_wait_takes_nothing_and_two_tasks_cannot_wait_for_one(c):
    async def main():
        with c.publisher("a") as pub, c.subscribe("a") as sub:
            task = asyncio.create_task(sub.take_async())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            with pytest.raises(dlx.InUse):
                await sub.take_async()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            pub.publish(b"x")
            assert (await sub.take_async(timeout=PATIENCE)).seq == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "close",
    [lambda sub: sub.close(), lambda sub: threading.Thread(target=sub.close).start()],
    ids=["here", "thread"],
)
def test_closing_ends_the_wait_of_a_task_and_leaves_nothing(c, close):
    """The next subscription has the same descriptor, and nothing of the last one's."""

    async def settle(fds):
        while count_fds() != fds:
            await asyncio.sleep(0)

    async def main():
        c.subscribe("a").close()
        gc.collect()  # what earlier tests left has descriptors, too
        fds = count_fds()
        for take in (lambda s: s.take_async(), anext, lambda s: s.take_async(PATIENCE)):
            sub = c.subscribe("a")
            task = asyncio.create_task(take(sub))
            await asyncio.sleep(0)
            close(sub)
            with pytest.raises(dlx.Closed, match="subscription of a is closed"):
                await asyncio.wait_for(task, PATIENCE)
            await asyncio.wait_for(settle(fds), PATIENCE)
        sub, task = c.subscribe("a"), None
        task = asyncio.create_task(sub.take_async())
        await asyncio.sleep(0)
        fd = sub.fileno()
        sub.close()
        with c.subscribe("a") as other, c.publisher("a") as pub:
            assert other.fileno() == fd
            with pytest.raises(dlx.Timeout):
                await other.take_async(timeout=0.01)
            with pytest.raises(dlx.Closed):
                await task
            again = asyncio.create_task(other.take_async(PATIENCE))
            await asyncio.sleep(0)
            pub.publish(b"x")
            assert (await again).seq == 1

    asyncio.run(main())


# -- fork ------------------------------------------------------------------------------------------


def test_a_forked_child_gets_errors_and_connects_anew(c, pair):
    pub, sub = pair
    pub.publish(b"abc")
    msg = sub.take()
    t, x, view = msg[0], pub.empty(3, "uint8"), np.asarray(msg)
    for use in (
        lambda: pub.publish(b"x"),
        lambda: sub.take(0),
        lambda: c.publisher("b"),
        lambda: t.tobytes(),
        lambda: memoryview(t),
        lambda: t.__dlpack__(max_version=(1, 0)),
        lambda: msg.__dlpack__(max_version=(1, 0)),
        lambda: memoryview(msg),
        lambda: msg[0],
        lambda: np.asarray(x),
        lambda: np.asarray(msg),
        lambda: msg.private(0),
        lambda: pub.empty(1),
        lambda: c.get("b", 0),
        lambda: pub.publish_many([b"x", b"y"]),
        lambda: sub.take_many(2, 0),
    ):
        assert in_child(use).startswith("Forked: ")

    def drop_all():
        nonlocal pub, sub, msg, t, x, view
        repr(t)
        del pub, sub, msg, t, x, view
        with dlx.connect() as own, own.subscribe("b") as s, own.publisher("b") as p:
            p.publish(b"child")
            return s.take(PATIENCE)[0].tobytes().decode()

    assert in_child(drop_all) == "child"
    assert bytes(view) == b"abc" and sub.stats()["n_held"] == 1  # the parent's are as they were
    pub.publish(x)
    assert sub.take().seq == 2


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        # everything is alive, in globals, at the end
        "pub = c.publisher('a'); sub = c.subscribe('a'); pub.publish(b'x'); m = sub.take(); t = "
        "m[0]; v = memoryview(t); d = t.__dlpack__(max_version=(1, 0))",
        # a thread waits
        "import threading; s = c.subscribe('a'); threading.Thread(target=s.take, "
        "daemon=True).start()",
        # a cycle with arrays in it
        "import numpy as np\npub = c.publisher('a'); sub = c.subscribe('a'); pub.publish(b'x'); l "
        "= [np.asarray(sub.take()), c, pub, sub]; l.append(l)",
        # at exit
        "import atexit; pub = c.publisher('a'); atexit.register(lambda: pub.publish(b'x')); sub = "
        "c.subscribe('a')",
        # an array is all that is left
        "import numpy as np\npub = c.publisher('a'); sub = c.subscribe('a'); pub.publish(b'x'); "
        "sys.keep = np.asarray(sub.take()); x = pub.empty(3); sys.x = np.asarray(x); del pub, sub, "
        "c, x",
    ],
)
def test_no_crash_at_the_end_of_the_interpreter(peer, code):
    assert peer(code).end() == ""


def test_a_daemon_that_dies_leaves_what_was_received(daemon, c, pair):
    pub, sub = pair
    pub.publish(b"abc")
    msg = sub.take()
    daemon.kill()
    daemon.wait()
    pub.publish(b"def")  # streams go on
    assert sub.take()[0].tobytes() == b"def" and msg[0].tobytes() == b"abc"
    with pytest.raises(dlx.DaemonError):
        c.daemon()


def test_waits_of_a_publisher_count_once_also_for_subscribers_that_come_to_a_new_daemon(
    daemon, c, peer, tmp_path
):
    """A wait is made of parts of 0.2 s."""
    pub = c.publisher("a", on_full="block", depth=4, timeout=0.5)
    p = peer('s = c.subscribe("a", reliable=True); say("there"); hear()')
    assert p.hear() == "there"
    pub.publish(b"x")
    daemon.kill()
    daemon.wait()
    with stopped(p.process), run_daemon(tmp_path):
        n, words = 0, ""
        deadline = time.monotonic() + PATIENCE
        while "yet to join" not in words:
            assert time.monotonic() < deadline, words
            try:
                pub.publish(b"x")
            except dlx.Timeout as e:
                n, words = n + 1, str(e)
        stats = pub.stats()
        assert stats["refused"] == stats["blocked"] == n


def test_a_private_daemon_starts_where_there_is_none(monkeypatch, folders, nobody_else):
    monkeypatch.setenv("DLX_AUTOSPAWN", "yes")
    monkeypatch.setenv("DLX_IDLE_EXIT", "0.25")
    with dlx.connect() as c:
        info = c.daemon()
        assert info["socket"] == str(folders / "dlpackd.sock")
        assert os.readlink(f"/proc/{info['pid']}/exe") == os.path.realpath(DAEMON)
    until(lambda: not os.path.exists(f"/proc/{info['pid']}"), "the daemon's end")
    until(lambda: not os.listdir(folders), "that nothing is left")


# -- debug -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code, words",
    [
        (
            "m = sub.take(); a = m['rgb'].numpy(); write(a.ctypes.data)",
            'dlx: fault in a received tensor, which is read-only: topic cam/front, tensor "rgb", '
            "message 1: write to msg.private(name) instead, "
            "subscribe with private=True, or copy it first",
        ),
        (
            "x = pub.empty(4000, 'uint8'); a = np.asarray(x); at = a.ctypes.data; pub.publish(x, "
            "share=True); write(at + 3999)",
            "dlx: fault in a tensor that was published: topic cam/front, tensor, message 2: fill a "
            "tensor before",
        ),
        ("write(8)", ""),
    ],
)
def test_debug_names_topic_and_tensor_of_a_stray_write(peer, code, words):
    p = peer(f"""
import ctypes, faulthandler, numpy as np, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def write(at): ctypes.c_char.from_address(at).value = b"x"
dlx.debug()
pub, sub = c.publisher("cam/front"), c.subscribe("cam/front")
pub.publish({{"rgb": b"1234"}})
{code}
""")
    err = p.end(status=-signal.SIGSEGV)
    assert err.startswith(words) and bool(words) == ("dlx:" in err)
    assert "Fatal Python error: Segmentation fault" in err and re.search(
        r'File "<string>", line \d+ in write', err
    ), err


def handles_faults():
    with open("/proc/self/status", encoding="ascii") as f:
        caught = next(line for line in f if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGSEGV - 1) & 1)


@pytest.mark.parametrize("value, expected", [("1", True), ("0", False), (None, False)])
def test_a_handler_of_faults_is_there_only_on_request(peer, monkeypatch, value, expected):
    if value:
        monkeypatch.setenv("DLX_DEBUG", value)
    monkeypatch.delenv("PYTHONFAULTHANDLER", raising=False)
    monkeypatch.delenv("PYTHONDEVMODE", raising=False)
    p = peer(f"""
import signal
{inspect.getsource(handles_faults)}
say(handles_faults())
dlx.debug(); say(handles_faults())
dlx.debug(False); say(handles_faults())
""")
    assert [p.hear() for _ in range(3)] == [str(expected), "True", "False"]
    p.end()
