# SPDX-License-Identifier: Apache-2.0
"""Signals, threads, forks, asyncio, the end of the interpreter, the private daemon, dlx.debug()."""
import asyncio
import contextlib
import gc
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import DAEMON, PATIENCE, count_fds, in_child, run_daemon, until

import dlx


# -- signals --------------------------------------------------------------------------------------------------

# The last line is the wait. (Interrupted in an import, Python may end by the signal all the same: namedtuple() calls eval().)
WAITS = {
    "take": 'c.subscribe("a").take()', "loop": 'next(iter(c.subscribe("a", timeout=3600)))', "get": 'c.get("nothing", timeout=None)',
    "connect": 'import socket; deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); path = os.environ["TMPDIR"] + "/deaf"\n'
               'deaf.bind(path); deaf.listen()\ndlx.connect(path, timeout=3600)',
    "connect where nobody is": 'dlx.connect(os.environ["TMPDIR"] + "/nobody", timeout=3600)',
    "wait": 'c.publisher("a").wait(3, timeout=3600)',
    "publish": 'p = c.publisher("f", on_full="block", depth=2); s = c.subscribe("f", reliable=True)\n'
               'for _ in range(99): p.publish(b"x")',
    "take many": 'c.subscribe("a").take_many(4)',
    "take, spinning": 'c.subscribe("a", spin="always").take()',
    "publish to those required": 'c.publisher("a", require=1).publish(b"x")',
    "publish many": 'p = c.publisher("f", on_full="block", depth=2); s = c.subscribe("f", reliable=True)\np.publish_many([b"x"] * 99)',
}


# A daemon that stands still is waited for as long as connect() said, which is an hour here.
QUESTIONS = {
    "publisher": 'c.publisher("a")', "subscribe": 'c.subscribe("a")', "get": 'c.get("a", timeout=0)', "drop_retained": 'c.drop_retained("a")',
    "publishers": "c.publishers()", "links": "c.links(1)", "daemon": "c.daemon()",
    "empty": "p.empty(1 << 20)", "zeros": "p.zeros(1 << 20)", "like": 'p.empty_like({"a": a, "b": a})', "publish": "p.publish(a)",
    "publish a set": 'p.publish({"a": a, "b": a})', "publish many": "p.publish_many([a, a])", "close": "p.close()", "with": "with p: pass",
}


def is_interrupted(peer, code, before="pass"):
    """Three times; a handler that returns does not end the wait. Afterwards nothing keeps the process."""
    p = peer(f"""
import signal
n = 0
def handler(*_):
    global n
    n += 1
    if n < 3: say("handled")
    else: raise KeyboardInterrupt
signal.signal(signal.SIGINT, handler)
{before}
try:
    say("ready")
    {code}
except KeyboardInterrupt:
    say("interrupted", n)
""")
    assert p.hear() == "ready"
    for _ in range(2):
        os.kill(p.process.pid, signal.SIGINT)
        assert p.hear() == "handled"
    os.kill(p.process.pid, signal.SIGINT)
    assert p.hear() == "interrupted 3"
    p.end()


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_interrupts_every_wait(peer, name):
    before, _, wait = WAITS[name].rpartition("\n")
    is_interrupted(peer, wait, before or "pass")


@pytest.mark.parametrize("name", QUESTIONS)
def test_ctrl_c_interrupts_every_question_to_the_daemon(daemon, peer, name):
    try:
        is_interrupted(peer, QUESTIONS[name], "c = dlx.connect(timeout=3600); p = c.publisher('a'); a = bytearray(1 << 20); "
                                              f"os.kill({daemon.pid}, {signal.SIGSTOP:d})")
    finally:
        daemon.send_signal(signal.SIGCONT)


def test_what_nobody_waits_for_any_more_is_given_back(daemon):
    """A question that was left is answered all the same; and a connection may be closed while it is."""
    watcher = dlx.connect()
    old = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
    try:
        c = dlx.connect(timeout=PATIENCE)
        gc.collect()  # what earlier tests left has descriptors, too
        before = count_fds()
        for use in (lambda: c.publisher("a"), lambda: c.subscribe("b"), lambda: c.get("c", 0)):
            daemon.send_signal(signal.SIGSTOP)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            try:
                with pytest.raises(ZeroDivisionError):
                    use()
            finally:
                daemon.send_signal(signal.SIGCONT)
            until(lambda: count_fds() == before and not watcher.publishers(), "that it is given back")
        daemon.send_signal(signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(ZeroDivisionError):
                c.publisher("a")
            c.close()
        finally:
            daemon.send_signal(signal.SIGCONT)
        until(lambda: count_fds() == before - 1, "that the connection is closed")
    finally:
        signal.signal(signal.SIGALRM, old)
        watcher.close()


def test_connect_with_a_timeout_waits_for_a_daemon_that_starts_later(tmp_path):
    with contextlib.ExitStack() as stack:
        started = []
        old = signal.signal(signal.SIGALRM, lambda *_: started.append(stack.enter_context(run_daemon(tmp_path))))
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # while it waits
        try:
            with dlx.connect(str(tmp_path / "s"), timeout=PATIENCE) as c:
                assert c.daemon()["pid"] == started[0].pid
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)


def test_connect_says_where_and_how_long_it_waited(tmp_path):
    path = str(tmp_path / "s")
    with pytest.raises(dlx.DaemonError, match=re.escape(f"waited 0.05 s: no dlpackd at {path}: No such file")):
        dlx.connect(path, timeout=0.05)
    with pytest.raises(dlx.DaemonError, match=re.escape(f"no dlpackd at {path}: No such file")) as e:
        dlx.connect(path)
    assert "waited" not in str(e.value)


def test_a_connection_that_nobody_waits_for_any_more_is_not_kept(tmp_path):
    """The thread that makes it ends by itself, and leaves nothing open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        gc.collect()  # what earlier tests left has descriptors, too
        before = count_fds()
        old = signal.signal(signal.SIGALRM, lambda *_: 1 / 0)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            with pytest.raises(ZeroDivisionError):
                dlx.connect(str(tmp_path / "deaf"), timeout=1)
        finally:
            signal.signal(signal.SIGALRM, old)
        until(lambda: count_fds() == before, "that its descriptors are closed")


# The signal is sent when another thread sees that the main one is in libdlx, where only the handler lets it go on: it runs there.
def handles_while_it_waits(peer, daemon, code, after="", timeout=3600):
    """A handler that does `code` runs inside of a.empty(), which waits for the daemon; what `after` says then is returned."""
    p = peer(f"""
import gc, signal, threading
c = dlx.connect(timeout={timeout})
a, b, s = c.publisher("a"), c.publisher("b"), c.subscribe("a")
def goes_on(): os.kill({daemon.pid}, signal.SIGCONT)
def handler(*_):
    global b
    {code}
def is_stopped():
    with open("/proc/{daemon.pid}/stat") as f: return f.read().rpartition(")")[2].split()[0] == "T"
def is_waiting():
    try: a.stats()
    except dlx.InUse: return True
def watch():
    while not is_waiting(): os.sched_yield()
    os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGUSR1, handler)
os.kill({daemon.pid}, signal.SIGSTOP)
while not is_stopped(): os.sched_yield()
thread = threading.Thread(target=watch)
thread.start()
try: a.empty(1 << 20)
except dlx.Timeout as e: say(e)
thread.join()
say("over")
hear()
{after}
""")
    said = []
    while not said or said[-1] not in ("over", ""):
        said.append(p.hear())
    assert said.pop() == "over", p.end()
    return p, said


@pytest.mark.parametrize("code", ["b.close()", "del b", "l = [b]; l.append(l); del b, l; gc.collect()", "s.close(); b.close(); c.close()"])
def test_a_handler_may_drop_what_it_likes_while_its_thread_waits(daemon, c, peer, code):
    """It leaves when the wait that the signal interrupted is over: libdlx holds a lock until then."""
    try:
        p, said = handles_while_it_waits(peer, daemon, f"{code}; goes_on(); say('handled')")
        assert said == ["handled"] and [x["topic"] for x in c.publishers()] == ["a"]
        assert (len(c.links(c.publishers()[0]["publisher"])) == 0) == ("s.close()" in code)
        p.say("go")
        p.end()
    finally:
        daemon.send_signal(signal.SIGCONT)


def test_what_leaves_after_a_wait_does_not_change_its_error(daemon, peer):
    try:
        p, said = handles_while_it_waits(peer, daemon, "b.close()", timeout=5)  # the other thread queues for 1 s
        assert len(said) == 1 and said[0].endswith("did not answer within 5 s")
        daemon.send_signal(signal.SIGCONT)
        p.say("go")
        p.end()
    finally:
        daemon.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("code", ["b.empty(1 << 20)", "b.publish(bytes(1 << 20))", "a.stats()", "c.daemon()", "c.publisher('x')", "c.get('x')"])
def test_a_handler_may_not_wait_for_the_wait_that_it_interrupted(daemon, c, peer, code):
    """But may ask by another connection; and what was refused works when the wait is over."""
    code = f"""
    try: {code}
    except dlx.InUse as e: say(e)
    goes_on()
    with dlx.connect() as other, other.publisher("o") as o: o.publish(b"x")
"""
    try:
        p, said = handles_while_it_waits(peer, daemon, code, after="b.publish(b.empty(1 << 20)); a.stats(); c.daemon()")
        assert len(said) == 1 and "waits for dlpackd" in said[0]
        p.say("go")
        p.end()
    finally:
        daemon.send_signal(signal.SIGCONT)


@pytest.fixture
def deaf(daemon):
    """A call makes that the daemon is gone, and a new one at its place does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as new:
        def take_its_place():
            daemon.kill()
            daemon.wait()
            os.unlink(os.environ["DLX_SOCKET"])
            new.bind(os.environ["DLX_SOCKET"])
            new.listen(4096)
        yield take_its_place


LOOKS = {"take": lambda sub: sub.take(0), "poll": lambda sub: sub._poll(), "take_many": lambda sub: sub.take_many(3, 0)}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_other_threads_run_while_a_look_for_messages_finds_a_new_daemon(pair, deaf, look):
    deaf()
    seen = threading.Event()

    def watch():
        while not seen.is_set():
            try:
                pair[1].stats()
            except dlx.InUse:
                seen.set()
    thread = threading.Thread(target=watch)
    thread.start()

    def is_seen():
        try:
            look(pair[1])
        except (dlx.Timeout, dlx.InUse):
            pass
        return seen.is_set()
    try:
        until(is_seen, "that another thread runs")
    finally:
        seen.set()
        thread.join()


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_a_take_had_when_a_handler_ended_it_is_not_lost(pair, deaf, look):
    pub, sub = pair
    n, x = 0, pub.zeros(1)

    def handler(*_):
        nonlocal n
        try:
            sub.stats()
        except dlx.InUse:  # it waits for the new daemon, and takes what comes meanwhile
            n = pub.publish_many([x, x], share=True).seq
            raise ZeroDivisionError from None

    def is_ended():
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            look(sub)
        except dlx.Timeout:
            pass
        except ZeroDivisionError:
            return True
        return False
    pub.publish(x, share=True)
    assert sub.take().seq == 1
    deaf()
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for i in range(3, 9, 2):
            until(is_ended, "that a handler ends it")
            assert n == i and [m.seq for m in (sub.take(0), *sub.take_many(9, 0))] == [i - 1, i]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


# -- threads --------------------------------------------------------------------------------------------------


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

    def is_in_use():
        try:
            sub.stats()
        except dlx.InUse:
            return True
        return False
    until(is_in_use, "waiting")
    with pytest.raises(dlx.InUse, match="subscription of a is used by another thread: one at a time may, so make one for each$"):
        sub.take(0)
    sub.close()
    thread.join(PATIENCE)
    assert said == ["the subscription of a is closed"] and sub.closed


def test_many_threads_with_handles_of_their_own(c):
    failures = []

    def work(i):
        try:
            with c.publisher(f"t/{i}") as pub, c.subscribe(f"t/{i}", timeout=PATIENCE) as sub:
                for k in range(200):
                    pub.publish(np.full(100, k))
                    assert np.asarray(sub.take())[99] == k
        except BaseException as e:
            failures.append(e)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


# -- asyncio --------------------------------------------------------------------------------------------------


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
            assert [m[0].tobytes() for m in await task + await sub.take_many_async(3)] == [b"1", b"2", b"3", b"4"]
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


@pytest.mark.parametrize("close", [lambda sub: sub.close(), lambda sub: threading.Thread(target=sub.close).start()], ids=["here", "thread"])
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


# -- fork -----------------------------------------------------------------------------------------------------


def test_a_forked_child_gets_errors_and_connects_anew(c, pair):
    pub, sub = pair
    pub.publish(b"abc")
    msg = sub.take()
    t, x, view = msg[0], pub.empty(3, "uint8"), np.asarray(msg)
    for use in (lambda: pub.publish(b"x"), lambda: sub.take(0), lambda: c.publisher("b"), lambda: t.tobytes(), lambda: memoryview(t),
                lambda: t.__dlpack__(max_version=(1, 0)), lambda: msg.__dlpack__(max_version=(1, 0)), lambda: memoryview(msg), lambda: msg[0],
                lambda: np.asarray(x), lambda: np.asarray(msg), lambda: msg.private(0), lambda: pub.empty(1), lambda: c.get("b", 0),
                lambda: pub.publish_many([b"x", b"y"]), lambda: sub.take_many(2, 0)):
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


# -- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [
    # everything is alive, in globals, at the end
    "pub = c.publisher('a'); sub = c.subscribe('a'); pub.publish(b'x'); m = sub.take(); t = m[0]; v = memoryview(t); d = t.__dlpack__(max_version=(1, 0))",
    # a thread waits
    "import threading; s = c.subscribe('a'); threading.Thread(target=s.take, daemon=True).start()",
    # a cycle with arrays in it
    "import numpy as np\npub = c.publisher('a'); sub = c.subscribe('a'); pub.publish(b'x'); l = [np.asarray(sub.take()), c, pub, sub]; l.append(l)",
    # at exit
    "import atexit; pub = c.publisher('a'); atexit.register(lambda: pub.publish(b'x')); sub = c.subscribe('a')",
    # an array is all that is left
    "import numpy as np\npub = c.publisher('a'); sub = c.subscribe('a'); pub.publish(b'x'); sys.keep = np.asarray(sub.take()); x = pub.empty(3); sys.x = np.asarray(x); del pub, sub, c, x",
])
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


def test_waits_of_a_publisher_count_once_also_for_subscribers_that_come_to_a_new_daemon(daemon, c, peer, tmp_path):
    """A wait is made of parts of 0.2 s. libdlx counts those for newcomers as failures, not as waits."""
    pub = c.publisher("a", on_full="block", depth=4, timeout=0.5)
    p = peer('s = c.subscribe("a", reliable=True); say("there"); hear()')
    assert p.hear() == "there"
    pub.publish(b"x")
    daemon.kill()
    daemon.wait()
    p.process.send_signal(signal.SIGSTOP)
    try:
        with run_daemon(tmp_path):
            n, words = 0, ""
            deadline = time.monotonic() + PATIENCE
            while "yet to join" not in words:
                assert time.monotonic() < deadline, words
                try:
                    pub.publish(b"x")
                except dlx.Timeout as e:
                    n, words = n + 1, str(e)
            stats = pub.stats()
            assert stats["full"] == n and stats["blocked"] < n  # the last one was none
    finally:
        p.process.send_signal(signal.SIGCONT)


def test_a_private_daemon_starts_where_there_is_none(monkeypatch, folders, nobody_else):
    monkeypatch.setenv("DLX_AUTOSPAWN", "yes")
    monkeypatch.setenv("DLX_IDLE_EXIT", "0.25")
    with dlx.connect() as c:
        info = c.daemon()
        assert info["socket"] == str(folders / "dlpackd.sock")
        assert os.readlink(f"/proc/{info['pid']}/exe") == os.path.realpath(DAEMON)
    until(lambda: not os.path.exists(f"/proc/{info['pid']}"), "the daemon's end")
    until(lambda: not os.listdir(folders), "that nothing is left")


# -- debug ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code, words", [
    ("m = sub.take(); a = m['rgb'].numpy(); write(a.ctypes.data)",
     'dlx: fault in a received tensor, which is read-only: topic cam/front, tensor "rgb", message 1: write to msg.private(name) instead, '
     "subscribe with private=True, or copy it first"),
    ("x = pub.empty(4000, 'uint8'); a = np.asarray(x); at = a.ctypes.data; pub.publish(x, share=True); write(at + 3999)",
     "dlx: fault in a tensor that was published: topic cam/front, tensor, message 2: fill a tensor before"),
    ("write(8)", ""),
])
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
    assert "Fatal Python error: Segmentation fault" in err and re.search(r'File "<string>", line \d+ in write', err), err


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
