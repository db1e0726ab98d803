# SPDX-License-Identifier: Apache-2.0
"""Publisher.publish_async() and wait_async(): nothing else of the event loop stands still."""

import asyncio
import selectors

import dlx
import pytest
from conftest import PATIENCE, blocking

BLOCKS = {"on_full": "block", "depth": 4}


async def turns(n=3):
    for _ in range(n):
        await asyncio.sleep(0)


def test_publish_async_waits_for_room_and_lets_others_run(c):
    async def main():
        with blocking(c, depth=4) as (pub, sub):
            for i in range(4):
                assert (await pub.publish_async(bytes([i]))).seq == i + 1
            task = asyncio.create_task(pub.publish_async({"x": b"last"}, meta={"k": 1}))
            await turns()
            assert not task.done() and pub.stats()["published"] == 4
            assert [(await sub.take_async())[0].tobytes() for _ in range(4)] == [
                bytes([i]) for i in range(4)
            ]
            report = await task
            assert report.seq == 5 and report.subscribers == 1
            msg = await sub.take_async()
            assert msg["x"].tobytes() == b"last" and msg.meta == {"k": 1}

    asyncio.run(main())


def test_publish_async_is_tried_once_before_it_waits(c):
    async def main():
        with blocking(c, depth=1) as (pub, sub):
            pub.publish(b"first")
            assert pub.stats()["refused"] == 0
            task = asyncio.create_task(pub.publish_async(b"second"))
            await turns(20)
            assert not task.done() and pub.stats()["refused"] == 1
            sub.take()
            assert (await task).seq == 2

    asyncio.run(main())


def test_many_messages_go_through_a_short_queue_in_one_loop(c):
    async def main():
        with blocking(c, depth=4) as (pub, sub):

            async def publish():
                for i in range(2000):
                    await pub.publish_async(str(i).encode())

            task = asyncio.create_task(publish())
            for i in range(2000):
                assert (await sub.take_async())[0].tobytes() == str(i).encode()
            await task

    asyncio.run(main())


def test_publish_async_ends_in_time_and_names_who_is_in_the_way(c):
    async def main():
        with blocking(c, depth=4, timeout=0.01) as (pub, sub):
            assert pub.timeout == 0.01
            for _ in range(4):
                await pub.publish_async(b"x")
            for timeout in ({}, {"timeout": 0.02}):
                with pytest.raises(dlx.Timeout, match="topic a"):
                    await pub.publish_async(b"x", **timeout)
            with pytest.raises(dlx.Full):
                await pub.publish_async(b"x", timeout=0)
            with pytest.raises(TypeError):
                await pub.publish_async(object())
            sub.take()
            assert (await pub.publish_async(b"x")).seq == 5

    asyncio.run(main())


def test_wait_async_sees_subscribers_come(c, peer):
    async def main():
        with c.publisher("a", require=1, timeout=PATIENCE) as pub:
            with pytest.raises(dlx.Timeout, match="0 of 1 subscribers; nobody subscribes to it"):
                await pub.wait_async(timeout=0.01)
            p = peer("""
                hear()
                with c.subscribe("a", timeout=60) as sub: say(sub.take()[0].tobytes()); hear()
            """)
            waits = asyncio.create_task(pub.wait_async())
            await turns()
            assert not waits.done()
            p.say("go")
            await waits
            assert (await pub.publish_async(b"1")).subscribers == 1 and p.hear() == "b'1'"
            p.say("end")
            p.end()

    asyncio.run(main())


def test_a_cancelled_publish_publishes_nothing_and_a_closed_publisher_ends_the_wait(c):
    async def main():
        pub = c.publisher("a", **BLOCKS)
        with c.subscribe("a", reliable=True) as sub:
            for _ in range(4):
                await pub.publish_async(b"x")
            task = asyncio.create_task(pub.publish_async(b"y"))
            await turns()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(sub.take_many(9)) == 4 and pub.stats()["published"] == 4
            for _ in range(4):
                await pub.publish_async(b"x")
            task = asyncio.create_task(pub.publish_async(b"y"))
            await turns()
            with pytest.raises(dlx.InUse):
                await pub.publish_async(b"z")
            pub.close()
            with pytest.raises(dlx.Closed):
                await task

    asyncio.run(main())


def test_fileno_is_for_selectors(c):
    with c.publisher("a") as pub, selectors.DefaultSelector() as selector:
        selector.register(pub, selectors.EVENT_READ)
        with pytest.raises(dlx.Timeout):
            pub.wait(1, 0)
        assert not selector.select(0)
        with c.subscribe("a"):
            assert selector.select(PATIENCE)
            pub.wait(1, 0)
