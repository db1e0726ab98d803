# SPDX-License-Identifier: Apache-2.0
"""Observers, subscriptions that accept publishers that drop, and what messages say of theirs."""

import asyncio
import os
import threading

import dlx
import pytest
from conftest import PATIENCE, alarm, run_daemon

OF_PUBLISHER = ("retained", "on_full", "depth", "history", "retain", "retain_for", "groups")
OF_SUBSCRIPTION = ("latest", "reliable", "accepts_unreliable", "group")


def told(observer):
    """All that there is, up to the change that says so."""
    changes = []
    while not changes or changes[-1].kind != "all":
        changes.append(observer.next(PATIENCE))
    return changes[:-1]


def test_publishers_are_told_with_what_they_offer(c):
    with c.publisher(
        "cam/front",
        on_full="block",
        depth=7,
        history=5,
        retain=3,
        retain_for=9,
        groups=["first", "second"],
    ) as pub:
        pub.publish(b"x", timeout=0)
        observer = c.observe("cam/**")
        [change] = told(observer)
        assert change.kind == "publisher" and change.own and not change.gone
        assert (change.topic, change.pid, change.uid) == ("cam/front", os.getpid(), os.getuid())
        assert change.id == c.publishers("cam/front")[0]["publisher"]
        assert change[8:15] == (False, "block", 7, 5, 3, 9.0, ("first", "second"))
        assert all(getattr(change, name) is None for name in OF_SUBSCRIPTION)
        with pytest.raises(dlx.Timeout):
            observer.next(0)
        with pytest.raises(dlx.Timeout):
            observer.next(0.001)
    last = observer.next(PATIENCE)
    assert last.id == change.id and (last.gone or last.retained)
    observer.close()
    with pytest.raises(dlx.Closed):
        observer.next()


def test_subscriptions_are_told_and_kinds_chosen(c):
    with (
        c.observe("cam/*", kinds="subscriptions") as observer,
        c.observe("cam/*", kinds="publishers") as others,
    ):
        assert told(observer) == told(others) == []
        with c.subscribe("*/front", latest=True):
            change = next(observer)
            assert (change.kind, change.topic) == ("subscription", "*/front")
            assert change[15:] == (True, False, False, None)
            assert all(getattr(change, name) is None for name in OF_PUBLISHER)
        assert observer.next(PATIENCE).gone
        with c.subscribe("cam/x", reliable=True, accepts_unreliable=True):
            assert observer.next(PATIENCE)[15:] == (False, True, True, None)
        assert observer.next(PATIENCE).gone
        with c.subscribe("cam/x", group="gpu"):
            assert observer.next(PATIENCE).group == "gpu"
        with c.publisher("cam/x"):
            assert others.next(PATIENCE).kind == "publisher"
    with pytest.raises(ValueError, match="kinds"):
        c.observe("cam/*", kinds="all")
    with pytest.raises(dlx.InvalidError, match="observe|pattern|topic"):
        c.observe("cam//x")


def test_no_subscriber_of_publishers(c):
    with c.publisher("t") as pub, c.observe("t") as observer:
        assert [change.kind for change in told(observer)] == ["publisher"]
        assert pub.publish(b"x").subscribers == 0
        assert "t" in repr(observer) and observer.topic == "t" and not observer.closed
        with pytest.raises(TypeError, match="belongs to its process"):
            observer.__reduce__()


def test_tasks_wait_for_changes(c):
    async def observe():
        with c.observe("t") as observer:
            assert (await observer.next_async()).kind == "all"
            with pytest.raises(dlx.Timeout):
                await observer.next_async(0)
            with pytest.raises(dlx.Timeout):
                await observer.next_async(0.001)
            waiting = asyncio.ensure_future(observer.next_async(PATIENCE))
            await asyncio.sleep(0)
            with c.publisher("t"):
                assert (await waiting).kind == "publisher"
            async for change in observer:
                assert change.gone
                break
            waiting = asyncio.ensure_future(observer.next_async())
            await asyncio.sleep(0)
            observer.close()
            with pytest.raises(dlx.Closed):
                await waiting

    asyncio.run(observe())


def test_signals_and_closing_end_a_wait(c):
    with c.observe("t") as observer:
        told(observer)
        with alarm(), pytest.raises(ZeroDivisionError):
            observer.next()
        thread = threading.Thread(target=observer.close)
        thread.start()
        with pytest.raises(dlx.Closed):
            observer.next(PATIENCE)
        thread.join()


def test_all_is_told_again_by_a_restarted_daemon(c, daemon, tmp_path):
    with c.publisher("t") as pub, c.observe("t") as observer:
        [before] = told(observer)
        daemon.kill()
        daemon.wait()
        with run_daemon(tmp_path):
            there = {before.id}
            while there in (set(), {before.id}):
                pub.publish(b"x")  # it comes back with a call
                change = observer.next(PATIENCE)
                if change.kind != "all":
                    (there.discard if change.gone else there.add)(change.id)
            assert before.id not in there or observer.next(PATIENCE).gone


def test_unreliable_publishers_are_taken_where_that_is_accepted(c):
    with (
        c.publisher("t", depth=9, retain=2, retain_for="latched") as drops,
        c.publisher("t", on_full="block", retain_for=2.5, retain=1) as blocks,
    ):
        with pytest.raises(dlx.InvalidError):
            c.subscribe("t", reliable=True)
        with c.subscribe("t", reliable=True, accepts_unreliable=True, stay=True) as sub:
            drops.publish(b"x")
            msg = sub.take(PATIENCE)
            assert msg.qos == (False, "drop", 9, 2, 2, "latched")
            assert not msg.qos.reliable and msg.qos.depth == 9
            blocks.publish(b"x")
            with sub.take(PATIENCE) as msg:
                assert (msg.qos.reliable, msg.qos.on_full) == (True, "block")
                assert (msg.qos.retain, msg.qos.retain_for) == (1, 2.5)
            with pytest.raises(dlx.Closed):
                _ = msg.qos
