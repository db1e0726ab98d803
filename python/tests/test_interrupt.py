# SPDX-License-Identifier: Apache-2.0
"""Interrupted waits: by handlers of signals, and by other threads that close the handle. An
interrupted wait counts as one, and needs no thread.
"""

import os
import signal
import threading

import dlx
import pytest
from conftest import PATIENCE, alarm, blocking, is_in_use, stopped, until


def every(handler, seconds=0.02):
    return alarm(handler, seconds, seconds)


@pytest.fixture
def full(c):
    """A publisher that has no room, and its subscription."""
    with blocking(c) as (pub, sub):
        pub.publish_many([b"1", b"2"])
        yield pub, sub


class Nth:
    """A handler that raises, or does something, when it is called the nth time."""

    def __init__(self, n, do=lambda: 1 / 0):
        self.n, self.do = n, do

    def __call__(self, *_):
        self.n -= 1
        if self.n == 0:
            self.do()


@pytest.mark.parametrize("nth", [1, 3, 20])
def test_an_interrupted_take_slept_once_and_loses_nothing(pair, nth):
    pub, sub = pair
    with every(Nth(nth)), pytest.raises(ZeroDivisionError):
        sub.take()
    assert sub.stats()["sleeps"] <= 2  # it may have been woken for the publisher's memory
    pub.publish(b"a")
    assert bytes(sub.take()[0]) == b"a" and sub.stats()["lost"] == 0


@pytest.mark.parametrize("nth", [1, 3, 20])
def test_an_interrupted_publish_waited_once_and_publishes_nothing(full, nth):
    pub, sub = full
    with every(Nth(nth)), pytest.raises(ZeroDivisionError):
        pub.publish(b"3")
    assert [pub.stats()[x] for x in ("published", "refused", "blocked")] == [2, 0, 1]
    assert [bytes(m[0]) for m in sub.take_many(9)] == [b"1", b"2"]
    assert pub.publish(b"3").seq == 3 and bytes(sub.take()[0]) == b"3"


def test_a_handler_that_returns_lets_every_wait_go_on_as_one(full, c):
    pub, sub = full
    with every(Nth(20, lambda: sub.take_many(2))):
        assert pub.publish(b"3").seq == 3
    assert [pub.stats()[x] for x in ("published", "refused", "blocked")] == [3, 0, 1]
    assert bytes(sub.take()[0]) == b"3"
    with c.publisher("b") as other, c.subscribe("b", timeout=PATIENCE) as taker:
        with every(Nth(20, lambda: other.publish(b"x"))):
            assert bytes(taker.take()[0]) == b"x"
        assert taker.stats()["sleeps"] <= 3
        late = []
        with every(Nth(20, lambda: late.append(c.subscribe("b")))):
            other.wait(2, timeout=PATIENCE)


def test_a_time_out_is_over_in_time_whatever_handlers_ran(pair):
    with every(lambda *_: None, 0.005), pytest.raises(dlx.Timeout, match="no message within 0.3 s"):
        pair[1].take(timeout=0.3)


def test_a_question_makes_no_thread(daemon):
    seen = []

    def look():
        seen.append(len(os.listdir("/proc/self/task")))
        daemon.send_signal(signal.SIGCONT)

    with dlx.connect(timeout=PATIENCE) as c:
        before = len(os.listdir("/proc/self/task"))
        with stopped(daemon), every(Nth(5, look)):
            assert c.daemon()["pid"] == daemon.pid
    assert seen == [before]


def test_ctrl_c_ends_the_start_of_a_daemon_and_the_daemon(
    tmp_path, monkeypatch, folders, nobody_else
):
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 1000\n")
    script.chmod(0o700)
    monkeypatch.setenv("DLX_AUTOSPAWN", "yes")
    monkeypatch.setenv("DLX_DAEMON", str(script))
    raised = []

    def handler(*_):
        if (
            not raised
            and (tmp_path / "pid").exists()
            and (tmp_path / "pid").read_text().endswith("\n")
        ):
            raised.append(True)
            raise KeyboardInterrupt

    with every(handler), pytest.raises(KeyboardInterrupt):
        dlx.connect()
    pid = (tmp_path / "pid").read_text().strip()
    until(lambda: not os.path.exists(f"/proc/{pid}"), "the daemon's end")


CLOSED = {
    "wait": lambda c, pub, sub: (pub, lambda: pub.wait(5)),
    "publish": lambda c, pub, sub: (pub, lambda: pub.publish(b"x")),
    "publish_many": lambda c, pub, sub: (pub, lambda: pub.publish_many([b"x", {"a": b"x"}])),
    "take": lambda c, pub, sub: (sub, lambda: (sub.take_many(9), sub.take())),
    "get": lambda c, pub, sub: (c, lambda: c.get("nothing", timeout=None)),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_handle_that_another_thread_closes_waits_no_longer(daemon, name):
    with dlx.connect() as c, blocking(c, timeout=None) as (pub, sub):
        pub.publish_many([b"1", b"2"])
        handle, call = CLOSED[name](c, pub, sub)
        said = []

        def wait():
            try:
                call()
            except dlx.Closed as e:
                said.append(str(e))

        # several may wait by a connection
        threads = [threading.Thread(target=wait) for _ in range(3 if handle is c else 1)]
        for thread in threads:
            thread.start()
        if handle is c:
            until(lambda: c.daemon()["n_links"] >= 1 and len(said) == 0, "waiting")
        else:
            until(lambda: is_in_use(handle), "waiting")
        handle.close()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(said) == len(threads) and all("is closed" in x for x in said)
        if handle is not c:  # it has left, although the object is still there
            what = "n_publishers" if handle is pub else "n_links"
            until(lambda: c.daemon()[what] == 0, "the end of what was closed")
