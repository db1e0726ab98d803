# SPDX-License-Identifier: Apache-2.0
"""Signals while libdlx waits: their handlers run, and what they raise ends the wait."""

import contextlib
import gc
import os
import re
import signal
import socket
import threading

import dlx
import pytest
from conftest import PATIENCE, alarm, count_fds, is_in_use, run_daemon, stopped, until

# The last line is the wait. (Interrupted in an import, Python may end by the signal all the same:
# namedtuple() calls eval().)
WAITS = {
    "take": 'c.subscribe("a").take()',
    "loop": 'next(iter(c.subscribe("a", timeout=3600)))',
    "get": 'c.get("nothing", timeout=None)',
    "connect": "import socket; deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); path = "
    'os.environ["TMPDIR"] + "/deaf"\n'
    "deaf.bind(path); deaf.listen()\ndlx.connect(path, timeout=3600)",
    "connect where nobody is": 'dlx.connect(os.environ["TMPDIR"] + "/nobody", timeout=3600)',
    "wait": 'c.publisher("a").wait(3, timeout=3600)',
    "publish": 'p = c.publisher("f", on_full="block", depth=2); s = c.subscribe("f", '
    "reliable=True)\n"
    'for _ in range(99): p.publish(b"x")',
    "take many": 'c.subscribe("a").take_many(4)',
    "take, spinning": 'c.subscribe("a", spin="always").take()',
    "publish to those required": 'c.publisher("a", require=1).publish(b"x")',
    "publish many": 'p = c.publisher("f", on_full="block", depth=2); s = c.subscribe("f", '
    'reliable=True)\np.publish_many([b"x"] * 99)',
}


# A daemon that stands still is waited for as long as connect() said, which is an hour here.
QUESTIONS = {
    "publisher": 'c.publisher("a")',
    "subscribe": 'c.subscribe("a")',
    "get": 'c.get("a", timeout=0)',
    "drop_retained": 'c.drop_retained("a")',
    "publishers": "c.publishers()",
    "links": "c.links(1)",
    "daemon": "c.daemon()",
    "empty": "p.empty(1 << 20)",
    "zeros": "p.zeros(1 << 20)",
    "like": 'p.empty_like({"a": a, "b": a})',
    "publish": "p.publish(a)",
    "publish a set": 'p.publish({"a": a, "b": a})',
    "publish many": "p.publish_many([a, a])",
    "close": "p.close()",
    "with": "with p: pass",
}


@contextlib.contextmanager
def goes_on(daemon):
    """Continues a stopped daemon also when the test fails."""
    try:
        yield
    finally:
        daemon.send_signal(signal.SIGCONT)


def is_interrupted(peer, code, before="pass"):
    """Three times; a handler that returns does not end the wait. Afterwards nothing keeps the
    process.
    """
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
    with goes_on(daemon):
        is_interrupted(
            peer,
            QUESTIONS[name],
            "c = dlx.connect(timeout=3600); p = c.publisher('a'); a = bytearray(1 << 20); "
            f"os.kill({daemon.pid}, {signal.SIGSTOP:d})",
        )


def test_an_answer_after_its_wait_has_ended_is_given_back(daemon):
    """The daemon answers a request whose caller has left; the connection may be closed
    meanwhile.
    """
    with dlx.connect() as watcher:
        c = dlx.connect(timeout=PATIENCE)
        gc.collect()  # what earlier tests left has descriptors, too
        before = count_fds()
        for use in (lambda: c.publisher("a"), lambda: c.subscribe("b"), lambda: c.get("c", 0)):
            with stopped(daemon), alarm(), pytest.raises(ZeroDivisionError):
                use()
            until(
                lambda: count_fds() == before and not watcher.publishers(), "that it is given back"
            )
        with stopped(daemon), alarm():
            with pytest.raises(ZeroDivisionError):
                c.publisher("a")
            c.close()
        until(lambda: count_fds() == before - 1, "that the connection is closed")


def test_connect_with_a_timeout_waits_for_a_daemon_that_starts_later(tmp_path):
    with contextlib.ExitStack() as stack:
        started = []
        with (
            alarm(lambda *_: started.append(stack.enter_context(run_daemon(tmp_path)))),
            dlx.connect(str(tmp_path / "s"), timeout=PATIENCE) as c,
        ):
            assert c.daemon()["pid"] == started[0].pid


def test_connect_says_where_and_how_long_it_waited(tmp_path):
    path = str(tmp_path / "s")
    with pytest.raises(
        dlx.DaemonError, match=re.escape(f"waited 0.05 s: no dlpackd at {path}: No such file")
    ):
        dlx.connect(path, timeout=0.05)
    with pytest.raises(
        dlx.DaemonError, match=re.escape(f"no dlpackd at {path}: No such file")
    ) as e:
        dlx.connect(path)
    assert "waited" not in str(e.value)


def test_a_connection_that_nobody_waits_for_any_more_is_not_kept(tmp_path):
    """The thread that makes it ends by itself, and leaves nothing open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.listen()
        gc.collect()  # what earlier tests left has descriptors, too
        before = count_fds()
        with alarm(), pytest.raises(ZeroDivisionError):
            dlx.connect(str(tmp_path / "deaf"), timeout=1)
        until(lambda: count_fds() == before, "that its descriptors are closed")


# The signal is sent when another thread sees that the main one is in libdlx, where only the handler
# lets it go on: it runs there.
def handles_while_it_waits(peer, daemon, code, after="", timeout=3600):
    """A handler that does `code` runs inside of a.empty(), which waits for the daemon; what `after`
    says then is returned.
    """
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


@pytest.mark.parametrize(
    "code",
    [
        "b.close()",
        "del b",
        "l = [b]; l.append(l); del b, l; gc.collect()",
        "s.close(); b.close(); c.close()",
    ],
)
def test_a_handler_may_drop_what_it_likes_while_its_thread_waits(daemon, c, peer, code):
    """A dropped object leaves when the interrupted wait is over: libdlx holds a lock until then."""
    with goes_on(daemon):
        p, said = handles_while_it_waits(peer, daemon, f"{code}; goes_on(); say('handled')")
        assert said == ["handled"] and [x["topic"] for x in c.publishers()] == ["a"]
        assert (len(c.links(c.publishers()[0]["publisher"])) == 0) == ("s.close()" in code)
        p.say("go")
        p.end()


def test_a_call_that_ends_after_a_wait_does_not_change_its_error(daemon, peer):
    with goes_on(daemon):
        # the other thread queues for 1 s
        p, said = handles_while_it_waits(peer, daemon, "b.close()", timeout=5)
        assert len(said) == 1 and said[0].endswith("did not answer within 5 s")
        daemon.send_signal(signal.SIGCONT)
        p.say("go")
        p.end()


@pytest.mark.parametrize(
    "code",
    [
        "b.empty(1 << 20)",
        "b.publish(bytes(1 << 20))",
        "a.stats()",
        "c.daemon()",
        "c.publisher('x')",
        "c.get('x')",
    ],
)
def test_a_handler_may_not_wait_for_the_wait_that_it_interrupted(daemon, c, peer, code):
    """But another connection may ask; and the refused call works when the wait is over."""
    code = f"""
    try: {code}
    except dlx.InUse as e: say(e)
    goes_on()
    with dlx.connect() as other, other.publisher("o") as o: o.publish(b"x")
"""
    with goes_on(daemon):
        p, said = handles_while_it_waits(
            peer, daemon, code, after="b.publish(b.empty(1 << 20)); a.stats(); c.daemon()"
        )
        assert len(said) == 1 and "waits for dlpackd" in said[0]
        p.say("go")
        p.end()


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


LOOKS = {
    "take": lambda sub: sub.take(0),
    "poll": lambda sub: sub._poll(),
    "take_many": lambda sub: sub.take_many(3, 0),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_other_threads_run_while_a_look_for_messages_finds_a_new_daemon(pair, deaf, look):
    deaf()
    seen = threading.Event()

    def watch():
        while not seen.is_set():
            if is_in_use(pair[1]):
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


def test_a_take_that_a_handler_ended_does_not_time_out_again(pair, deaf):
    """Its time was over, too, when the handler ran: it was waiting for the new daemon."""
    pub, sub = pair
    x = pub.zeros(1)
    deaf()

    def handler(*_):
        if is_in_use(sub):
            raise ZeroDivisionError

    def is_ended(timeout, after):
        try:
            with alarm(handler, after):
                sub.take(timeout)
        except dlx.Timeout:
            return False
        except ZeroDivisionError:
            return True

    # Each that was ended looks for the daemon again after 20 ms.
    until(lambda: is_ended(0, 0.01) and is_ended(0.03, 0.04), "that a handler ends the second one")
    pub.publish(x, share=True)
    assert sub.take(0).seq == 1


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_messages_of_a_take_that_a_handler_ended_are_not_lost(pair, deaf, look):
    pub, sub = pair
    n, x = 0, pub.zeros(1)

    def handler(*_):
        nonlocal n
        if is_in_use(sub):  # it waits for the new daemon, and takes what comes meanwhile
            n = pub.publish_many([x, x], share=True).seq
            raise ZeroDivisionError

    def is_ended():
        try:
            with alarm(handler, 0.01):
                look(sub)
        except dlx.Timeout:
            return False
        except ZeroDivisionError:
            return True

    pub.publish(x, share=True)
    assert sub.take().seq == 1
    deaf()
    for i in range(3, 9, 2):
        until(is_ended, "that a handler ends it")
        assert n == i and [m.seq for m in (sub.take(0), *sub.take_many(9, 0))] == [i - 1, i]
