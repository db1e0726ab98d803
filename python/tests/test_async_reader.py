# SPDX-License-Identifier: Apache-2.0
"""The descriptor that asyncio waits on stays with the event loop between waits, and goes with the
handle or the loop.
"""

import asyncio
import gc
import os
import threading

import dlx
import pytest
from conftest import PATIENCE, count_fds


class Loop(asyncio.SelectorEventLoop):
    """Counts what it adds and removes."""

    changes = 0

    def _add_reader(self, fd, callback, *args):
        self.changes += 1
        return super()._add_reader(fd, callback, *args)

    def _remove_reader(self, fd):
        self.changes += 1
        return super()._remove_reader(fd)

    def add_reader(self, fd, callback, *args):
        self.changes += 1
        return super().add_reader(fd, callback, *args)

    def remove_reader(self, fd):
        self.changes += 1
        return super().remove_reader(fd)


def run(main):
    """main(loop) in a loop of its own."""
    loop = Loop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        loop.close()


def test_waits_one_after_the_other_change_nothing_in_the_loop(c, peer, monkeypatch):
    p = peer("""
        pub = c.publisher("a")
        pub.wait(1, 60)
        while hear() == "next": pub.publish(b"x")
    """)
    dups = []
    monkeypatch.setattr(os, "dup", lambda fd, dup=os.dup: dups.append(fd) or dup(fd))

    async def main(loop):
        with c.subscribe("a", stay=True) as sub:
            p.say("next")
            await sub.take_async(PATIENCE)
            before = loop.changes
            for _ in range(50):
                waits = asyncio.create_task(sub.take_async(PATIENCE))
                await asyncio.sleep(0)
                p.say("next")
                await waits
            # a machine that is late may have some
            assert loop.changes - before < 10 and len(dups) == 1

    run(main)
    p.say("end")
    p.end()


def test_a_loop_does_not_spin_on_what_nobody_takes(c):
    async def main(loop):
        with c.publisher("a") as pub, c.subscribe("a") as sub:
            waits = asyncio.create_task(sub.take_async(PATIENCE))
            await asyncio.sleep(0)
            pub.publish(b"1")
            assert (await waits).seq == 1
            pub.publish(b"2")
            pub.publish(b"3")
            for _ in range(10):
                await asyncio.sleep(0)
            loop.changes = 0
            for _ in range(10):
                await asyncio.sleep(0)
            assert loop.changes == 0 and not loop._ready  # it was removed
            assert [(await sub.take_async(PATIENCE)).seq for _ in range(2)] == [2, 3]
            waits = asyncio.create_task(sub.take_async(PATIENCE))
            await asyncio.sleep(0)
            pub.publish(b"4")
            assert (await waits).seq == 4

    run(main)


@pytest.mark.parametrize("end", ["close", "drop", "thread", "after the loop"])
def test_remains_of_a_wait_go_with_the_handle(c, end):
    async def main(loop):
        with pytest.raises(dlx.Timeout):
            await handles[0].take_async(0.001)
        if end == "close":
            handles[0].close()
        elif end == "drop":
            handles.clear()
        elif end == "thread":
            thread = threading.Thread(target=handles[0].close)
            thread.start()
            thread.join()
        await asyncio.sleep(0)

    with c.publisher("a"):
        c.subscribe("a").close()
        gc.collect()
        fds = count_fds()
        handles = [c.subscribe("a")]
        run(main)
        handles.clear()
        assert count_fds() == fds
        handles = [c.subscribe("a")]  # perhaps where the last one was
        if end != "drop":
            run(main)
        handles.clear()
        assert count_fds() == fds


def test_remains_of_a_wait_go_before_a_waiter_looks_again(c):
    async def main(loop):
        c.subscribe("a").close()
        gc.collect()
        fds = count_fds()
        sub = c.subscribe("a")
        waits = asyncio.create_task(sub.take_async(PATIENCE))
        await asyncio.sleep(0)
        sub.close()
        while count_fds() > fds:
            assert not waits.done()
            await asyncio.sleep(0)
        assert not waits.done()
        with pytest.raises(dlx.Closed):
            await waits

    with c.publisher("a"):
        run(main)


def test_a_handle_may_go_to_another_loop(c):
    async def main(loop):
        pub.publish(b"x")
        assert (await sub.take_async(PATIENCE)).seq > 0
        with pytest.raises(dlx.Timeout):
            await sub.take_async(0.001)

    with c.publisher("a") as pub, c.subscribe("a") as sub:
        gc.collect()
        fds = None
        for _ in range(3):
            run(main)
            fds = fds or count_fds()
            assert count_fds() == fds


def test_two_loops_cannot_wait_for_one(c):
    with c.publisher("a") as pub, c.subscribe("a") as sub:
        first = Loop()
        waits = first.create_task(sub.take_async(PATIENCE))
        first.run_until_complete(asyncio.sleep(0))
        first.run_until_complete(asyncio.sleep(0))

        async def main(loop):
            await sub.take_async(PATIENCE)

        with pytest.raises(dlx.InUse):
            run(main)
        pub.publish(b"x")
        assert first.run_until_complete(waits).seq == 1
        first.close()
