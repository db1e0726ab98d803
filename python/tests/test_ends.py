# SPDX-License-Identifier: Apache-2.0
"""When loops and takes end: `stay` and `publishers` of Connection.subscribe()."""

import asyncio

import dlx
import pytest
from conftest import PATIENCE, run_daemon, until

WAYS = ["loop", "take", "take_many", "async loop", "take_async", "take_many_async"]


def next_text(sub, way):
    """The next message's bytes; None: the end."""

    async def run(coroutine):
        return await coroutine

    async def take_async_loop():
        async for msg in sub:
            return msg

    try:
        if way == "loop":
            msg = next(iter(sub), None)
        elif way == "async loop":
            msg = asyncio.run(take_async_loop())
        elif way.endswith("async"):
            msg = asyncio.run(
                run(sub.take_async() if way == "take_async" else sub.take_many_async(1))
            )
        else:
            msg = sub.take() if way == "take" else sub.take_many(1)
    except dlx.PublisherGone as e:
        assert "stay=True" in str(e)
        return None
    msg = msg[0] if isinstance(msg, list) else msg
    return msg and msg[0].tobytes()


def come_and_go(c, topic, data):
    with c.publisher(topic) as pub:
        pub.publish(data)


def wait_until_alone(sub):
    """Everything was taken, and the subscription knows that the publisher has left."""

    def is_alone():
        with pytest.raises(dlx.Timeout):
            sub.take(0)
        return sub.stats()["n_publishers"] == 0

    until(is_alone, "the end of the publisher")


@pytest.mark.parametrize("way", WAYS)
def test_an_ended_subscription_stays_ended(c, way):
    with c.subscribe("a", timeout=PATIENCE) as sub:
        come_and_go(c, "a", b"1")
        assert next_text(sub, way) == b"1" and next_text(sub, way) is None
        come_and_go(c, "a", b"2")
        for each in WAYS:
            assert next_text(sub, each) is None
        assert list(sub) == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "topic,args",
    [("b/*", {}), ("b/*", {"stay": True}), ("b/0", {"stay": True})],
    ids=["pattern", "pattern, stay", "topic, stay"],
)
def test_a_subscription_that_stays_waits_for_the_next_publisher(c, topic, args, way):
    with c.subscribe(topic, timeout=PATIENCE, **args) as sub:
        for i in range(3):
            come_and_go(c, "b/0", bytes([i]))
            assert next_text(sub, way) == bytes([i])
            wait_until_alone(sub)
        sub.timeout = 0.01
        with pytest.raises(dlx.Timeout):
            next_text(sub, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_pattern_that_does_not_stay_ends(c, way):
    with c.subscribe("b/*", timeout=PATIENCE, stay=False) as sub:
        come_and_go(c, "b/0", b"1")
        assert next_text(sub, way) == b"1" and next_text(sub, way) is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("topics", [["b", "b"], ["b/0", "b/1"]], ids=["topic", "pattern"])
def test_a_loop_for_two_publishers_ends_when_both_have_left(c, topics, way):
    with c.subscribe("b" if topics[0] == "b" else "b/*", timeout=PATIENCE, publishers=2) as sub:
        come_and_go(c, topics[0], b"1")
        assert next_text(sub, way) == b"1"
        wait_until_alone(sub)  # no publisher is there: the other one comes later
        come_and_go(c, topics[1], b"2")
        assert next_text(sub, way) == b"2" and next_text(sub, way) is None
        assert next_text(sub, way) is None


def test_all_results_of_workers_that_come_one_after_the_other(c, peer):
    with c.subscribe("b/*", timeout=PATIENCE, reliable=True, publishers=2) as sub:
        workers = [
            peer(f"""
            hear()
            with c.publisher("b/{i}", on_full="block", timeout=60) as p:
                p.wait(1, 60)
                for k in range(10): p.publish(b"x")
            say("left")
        """)
            for i in range(2)
        ]
        workers[0].say("go")
        got = 0
        for _ in sub:
            got += 1
            if got == 10:
                assert workers[0].hear() == "left"
                wait_until_alone(sub)
                workers[1].say("go")
        assert got == 20


def test_contradictions_are_refused(c):
    for stay in (True, False):
        with pytest.raises(ValueError, match="stay and publishers exclude each other"):
            c.subscribe("a", stay=stay, publishers=2)
    with pytest.raises(ValueError, match="1 or more"):
        c.subscribe("a", publishers=0)
    with pytest.raises(ValueError, match="publishers"):
        c.subscribe("a", publishers=1 << 32)


# -- publishers that require subscribers -----------------------------------------------------------


@pytest.mark.parametrize("on_full", ["drop", "block"])
def test_a_publisher_that_requires_subscribers_does_not_publish_to_nobody(c, on_full):
    with c.publisher("a", on_full=on_full, require=2, timeout=0.01) as pub:
        x = pub.zeros(3)
        with pytest.raises(dlx.Timeout, match="require is 2: topic a has 0 of 2 subscribers"):
            pub.publish(x)
        with c.subscribe("a") as one:
            with pytest.raises(dlx.Timeout, match="1 of 2"):
                pub.publish({"x": x}, timeout=0)
            with c.subscribe("a") as two:
                assert pub.publish(x).subscribers == 2
                assert pub.publish_many([b"1", b"2"]).subscribers == 2
                assert len(one.take_many(9)) == len(two.take_many(9)) == 3
        assert pub.stats()["published"] == 3
    with c.publisher("b", on_full=on_full) as pub:
        assert pub.publish(b"1").subscribers == 0


def test_publish_waits_for_a_subscriber_that_it_requires(c, peer):
    with c.publisher("a", require=1) as pub:
        p = peer("""
            hear()
            with c.subscribe("a", timeout=60) as sub: say(sub.take()[0].tobytes()); hear()
        """)
        p.say("go")
        assert pub.publish(b"first").subscribers == 1 and p.hear() == "b'first'"
        p.say("end")
        p.end()


def ends_with(sub, way):
    """The result of the next take: its bytes, or the type of its exception."""
    try:
        return next_text(sub, way)
    except (dlx.DaemonError, dlx.Timeout) as e:
        return type(e)


@pytest.mark.parametrize("stay", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_dead_daemon_is_told_once_and_the_next_one_is_waited_for(tmp_path, way, stay):
    """Without a publisher: only then a dead daemon keeps the subscription from going on."""
    with run_daemon(tmp_path) as process:
        sub = dlx.connect(str(tmp_path / "s")).subscribe("a", timeout=PATIENCE, stay=stay)
        process.kill()
        process.wait()
    for _ in range(2):
        assert ends_with(sub, way) is dlx.DaemonError
        sub.timeout = 0.01
        assert [ends_with(sub, each) for each in WAYS] == [dlx.Timeout] * len(WAYS)
        sub.timeout = PATIENCE
        with (
            run_daemon(tmp_path) as process,
            dlx.connect(str(tmp_path / "s")) as c,
            c.publisher("a") as pub,
        ):

            def is_attached():
                with pytest.raises(dlx.Timeout):
                    sub.take(0)
                return sub.stats()["n_publishers"] == 1

            until(is_attached, "the link")
            pub.publish(b"1")
            assert ends_with(sub, way) == b"1"
            assert [e.kind for e in sub.events()] == ["reconnected", "joined"]
            if stay:
                pub.close()
                until(
                    lambda: [e.kind for e in sub.events()] == ["left"] or sub._poll(),
                    "the end of the publisher",
                )
            else:
                break
            process.kill()
            process.wait()
    sub.close()


@pytest.mark.parametrize("way", ["take", "take_many", "take_async", "take_many_async"])
def test_publisher_gone_says_why_there_is_no_other_publisher(c, way):
    """The next calls have the same words."""
    with (
        c.publisher("a", on_full="block") as pub,
        c.subscribe("a", reliable=True, timeout=PATIENCE) as sub,
        c.publisher("a"),
    ):
        with pytest.raises(dlx.InvalidError, match="drops its oldest messages"):
            sub.take()
        pub.close()
        for _ in range(2):
            with pytest.raises(dlx.PublisherGone, match="a publisher was refused: .* drops its"):
                asyncio.run(getattr(sub, way)(1)) if "async" in way else getattr(sub, way)(1)
