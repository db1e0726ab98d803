# SPDX-License-Identifier: Apache-2.0
"""try_take(), select() of several subscriptions, and several threads on one publisher."""

import re
import select
import threading
import time

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, run_threads, until


def test_try_take_gives_a_message_or_none(pair):
    pub, sub = pair
    assert sub.try_take() is None
    pub.publish(b"1")
    assert sub.try_take(stream=None).tobytes() == b"1" and sub.try_take() is None
    pub.publish(b"2")
    pub.close()
    assert sub.try_take().tobytes() == b"2"
    with pytest.raises(dlx.PublisherGone):
        until(sub.try_take)
    sub.close()
    with pytest.raises(dlx.Closed):
        sub.try_take()


@pytest.fixture
def several(c):
    with (
        c.publisher("a") as a,
        c.publisher("b") as b,
        c.subscribe("a", timeout=PATIENCE) as x,
        c.subscribe("b", timeout=PATIENCE) as y,
    ):
        yield a, b, x, y


def test_select_tells_which_have_messages_and_takes_none(several):
    a, b, x, y = several
    assert dlx.select([x, y], 0) == []
    b.publish(b"1")
    for _ in range(3):
        assert dlx.select([x, y], PATIENCE) == [y] and dlx.select(iter([y, x])) == [y]
    b.publish(b"2")
    a.publish(b"3")
    assert dlx.select((x, y), 0) == [x, y]
    assert [s.take().tobytes() for s in (y, y, x)] == [b"1", b"2", b"3"]
    assert dlx.select([x, y], 0) == [] and y.stats()["lost"] == y.stats()["skipped"] == 0
    for take in (y.take, y.try_take, lambda: next(y), lambda: y._poll(3)[0]):
        b.publish(b"x")
        assert dlx.select([y]) == [y] and take().tobytes() == b"x"


def test_select_waits_for_the_first_message(several):
    a, b, x, y = several
    waits = threading.Event()

    def publish():
        waits.wait(PATIENCE)
        b.publish(b"1")

    thread = threading.Thread(target=publish)
    thread.start()
    assert dlx.select([x, y], 0.05) == []
    began = time.monotonic()
    waits.set()
    assert dlx.select([x, y], PATIENCE) == [y] and time.monotonic() - began < PATIENCE / 2
    thread.join()


def test_select_keeps_its_time(several):
    *_, x, y = several
    began = time.monotonic()
    assert dlx.select([x, y], 0.3) == [] and time.monotonic() - began >= 0.3
    assert dlx.select([], 0) == []
    with pytest.raises(ValueError, match="for ever"):
        dlx.select([])


def test_select_of_what_is_no_list_of_subscriptions_takes_nothing(several):
    a, _, x, _ = several
    a.publish(b"1")
    with pytest.raises(
        TypeError, match=re.escape("a list of subscriptions, as in select([subscription], timeout)")
    ):
        dlx.select(x, 1)
    with pytest.raises(
        TypeError, match=re.escape("an item of type Publisher: <dlx.Publisher of a>")
    ):
        dlx.select([x, a], 1)
    assert x.stats()["taken"] == 0 and x.take().tobytes() == b"1"


def test_a_subscription_whose_take_raises_is_ready(several):
    a, b, x, y = several
    held = []
    for _ in range(16):
        a.publish(b"1")
        held.append(x.take())
    a.publish(b"2")
    assert dlx.select([x, y], PATIENCE) == [x]
    with pytest.raises(dlx.TooManyHeld):
        x.take()
    assert dlx.select([x, y], PATIENCE) == [x]
    held.clear()
    assert x.take().tobytes() == b"2"  # which is not kept from it by what was said before
    b.close()
    assert dlx.select([x, y], PATIENCE) == [y] == dlx.select([y])
    with pytest.raises(dlx.PublisherGone):
        y.take()


def test_closing_ends_a_select_of_another_thread(several, monkeypatch):
    *_, x, y = several
    said, polls = [], threading.Event()

    class Poll:
        def __init__(self, make=select.poll):
            self.poll_it = make()
            self.register = self.poll_it.register

        def poll(self, ms):
            found = self.poll_it.poll(0)
            if found:
                return found
            polls.set()  # and now it sleeps
            return self.poll_it.poll(ms)

    monkeypatch.setattr(select, "poll", Poll)

    def wait():
        try:
            dlx.select([x, y], PATIENCE)
        except dlx.Closed as e:
            said.append(str(e))

    thread = threading.Thread(target=wait)
    thread.start()

    def is_asleep():
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as f:
            return f.read().rpartition(")")[2].split()[0] == "S"

    assert polls.wait(PATIENCE)
    until(is_asleep)
    y.close()
    thread.join(PATIENCE)
    assert len(said) == 1 and "the subscription of b" in said[0]


def n_mapped():
    """Arenas of publishers that subscriptions of this process have mapped."""
    with open("/proc/self/maps", encoding="utf-8") as f:
        return sum("dlx-arena" in line and " r--s " in line for line in f)


def test_closing_lets_go_of_what_select_found(c):
    with c.publisher("a") as pub:
        pub.publish(b"x")
        n = n_mapped()
        sub = c.subscribe("a", history=1)
        assert dlx.select([sub], PATIENCE) == [sub] and n_mapped() > n
        sub.close()
        assert n_mapped() == n and sub.closed  # it is still there


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_select_looks_again_by_itself(several, monkeypatch, timeout):
    """close() of another thread can close the descriptor that poll() sleeps on without waking
    it.
    """
    *_, x, y = several
    waits = []

    class Deaf:
        def register(self, fd, events):
            pass

        def poll(self, ms):
            waits.append(ms)
            y.close()

    monkeypatch.setattr(select, "poll", Deaf)
    with pytest.raises(dlx.Closed, match="the subscription of b"):
        dlx.select([x, y], timeout)
    assert waits == [1000]


def test_threads_queue_for_a_publisher(c):
    """Each copies so much that the others run meanwhile."""
    data, n = np.ones(1 << 20, "u1"), 25
    with (
        c.publisher("a", depth=256) as pub,
        c.subscribe("a", timeout=PATIENCE, max_held=256, history=256) as sub,
    ):
        together = threading.Barrier(4)

        def publish(k):
            together.wait(PATIENCE)
            for i in range(n):
                pub.publish({f"{k}": data, "i": np.int64(i)})

        run_threads([lambda k=k: publish(k) for k in range(4)])
        assert pub.stats()["published"] == 4 * n
        got = {}
        for _ in range(4 * n):
            with sub.take() as msg:
                got.setdefault(msg.names[0], []).append(msg["i"].item())
    assert got == {str(k): list(range(n)) for k in range(4)}  # each in its order


def test_the_queue_ends_when_the_other_thread_waits_on(c):
    said = []

    def call(function, *args):
        try:
            function(*args)
        except dlx.Error as e:
            said.append(type(e))

    with c.publisher("a") as pub:
        thread = threading.Thread(target=call, args=(pub.wait, 1, PATIENCE))
        thread.start()

        def is_used():
            began = time.monotonic()
            try:
                pub.publish(b"1")
            except dlx.InUse as e:
                return (
                    "the publisher of a" in str(e) and 0.9 < time.monotonic() - began < PATIENCE / 2
                )

        until(is_used)
        queued = threading.Thread(target=call, args=(pub.publish, b"2"))
        queued.start()
        pub.close()
        thread.join(PATIENCE)
        queued.join(PATIENCE)
    assert said == [dlx.Closed] * 2


def test_a_thread_does_not_wait_for_itself(c):
    """A finalizer that publishes in the midst of publish()."""
    with c.publisher("a") as pub:
        said = []

        class Odd:
            def __dlpack__(self, **kwargs):
                began = time.monotonic()
                try:
                    pub.publish(b"1")
                except dlx.InUse:
                    said.append(time.monotonic() - began)
                raise BufferError("no")

            def __dlpack_device__(self):
                return (1, 0)

        with pytest.raises(BufferError, match="no"):
            pub.publish(Odd())
        assert len(said) == 1 and said[0] < 0.9
