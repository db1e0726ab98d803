# SPDX-License-Identifier: Apache-2.0
"""Work queues: each message goes to one worker of a group, until a worker says that it is done."""

import asyncio
import contextlib
import signal
import time

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, in_child, until


def text(message):
    return message.tobytes().decode()


@contextlib.contextmanager
def queue(c, n_workers=1, groups=("g",), topic="work", **kwargs):
    """A publisher with groups, and workers of the first one."""
    with contextlib.ExitStack() as stack:
        pub = stack.enter_context(c.publisher(topic, groups=groups))
        yield (
            pub,
            *(
                stack.enter_context(
                    c.subscribe(topic, group=groups[0], **{"timeout": PATIENCE, **kwargs})
                )
                for _ in range(n_workers)
            ),
        )


def group_of(c, name="g"):
    (group,) = [g for g in c.groups() if g["name"] == name]
    return group


# -- done, given back ----------------------------------------------------------------------------


def test_a_block_says_done_when_it_ends(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        with sub.take() as task:
            assert text(task) == "a" and task.attempt == 1
            assert sub.stats()["n_claimed"] == 1
        assert task.released
        pub.drain(PATIENCE)
        stats = sub.stats()
        assert (stats["n_claimed"], stats["done"], stats["redelivered"]) == (0, 1, 0)


def test_an_exception_in_the_block_gives_back(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        with pytest.raises(ZeroDivisionError), sub.take():
            _ = 1 / 0
        with sub.take() as task:
            assert text(task) == "a" and task.attempt == 2
        pub.drain(PATIENCE)
        assert sub.stats()["redelivered"] == 1


def test_a_block_may_say_itself_what_became_of_the_message(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        with sub.take() as task:
            task.give_back()
        with sub.take() as task:
            assert task.attempt == 2
            task.done()
        pub.publish(b"b")
        with pytest.raises(ZeroDivisionError), sub.take() as task:
            task.done()
            _ = 1 / 0  # what was done stays done
        pub.publish(b"c")
        with sub.take() as task:
            task.release()
        with sub.take() as task:
            assert text(task) == "c" and task.attempt == 2
        pub.drain(PATIENCE)


def test_done_and_give_back_say_when_the_message_is_not_ours(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        task = sub.take()
        task.give_back()
        for call in (task.done, task.give_back, task.renew):
            with pytest.raises(dlx.NotFound, match="given back"):
                call()
        again = sub.take()
        again.done()
        again.done()  # says it again
        with pytest.raises(dlx.NotFound, match="done"):
            again.give_back()
        assert text(task) == text(again) == "a"
        again.release()
        with pytest.raises(dlx.Closed):
            again.done()


def test_a_message_that_is_only_let_go_is_given_back(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        task = sub.take()
        x = np.asarray(task)
        task.release()  # although the array holds its memory
        task = sub.take()
        assert task.attempt == 2 and x.tobytes() == b"a"
        del task
        assert sub.take().attempt == 3


def test_arrays_outlive_a_message_that_is_done(c):
    with queue(c) as (pub, sub):
        pub.publish(np.arange(1000))
        with sub.take() as task:
            x = np.asarray(task)
        pub.drain(PATIENCE)
        pub.publish(np.zeros(1000, int))
        with sub.take():
            assert np.array_equal(x, np.arange(1000))


def test_ordinary_messages_have_no_attempt_and_refuse_to_be_done(c):
    with queue(c) as (pub, _), c.subscribe("work", timeout=PATIENCE) as every:
        pub.publish(b"a")
        with every.take() as msg:
            assert msg.attempt == 0
            for call in (msg.done, msg.give_back, msg.renew):
                with pytest.raises(dlx.InvalidError, match="in no group"):
                    call()


# -- many workers ----------------------------------------------------------------------------


def test_each_message_goes_to_one_worker_of_each_group(c):
    with (
        queue(c, 3, groups=("g", "h")) as (pub, *workers),
        c.subscribe("work", group="h", timeout=PATIENCE) as other,
        c.subscribe("work", timeout=PATIENCE) as every,
    ):
        for i in range(30):
            pub.publish(str(i).encode())
        got = []
        while len(got) < 30:
            for worker in workers:
                if task := worker.try_take():
                    with task:
                        got.append(int(text(task)))
        assert sorted(got) == list(range(30))
        for sub in (other, every):
            for i in range(30):
                with sub.take() as msg:
                    assert int(text(msg)) == i
        pub.drain(PATIENCE)


def test_a_loop_ends_when_the_publisher_has_left_and_all_is_done(c):
    with queue(c) as (pub, sub):
        for i in range(10):
            pub.publish(bytes([i]))
        pub.close()
        got = []
        for task in sub:
            with task:
                got.append(task.tobytes()[0])
        assert got == list(range(10))


def test_a_loop_that_says_nothing_is_told_what_to_do(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        pub.publish(b"b")
        with pytest.raises(dlx.TooManyHeld, match=r"max_held.*done\(\)"):
            for task in sub:
                assert text(task) == "a"
        assert task.attempt == 1


def test_max_held_counts_what_is_neither_done_nor_given_back(c):
    with queue(c, max_held=3) as (pub, sub):
        for i in range(4):
            pub.publish(bytes([i]))
        tasks = sub.take_many(10)
        assert len(tasks) == 3 and sub.stats()["n_claimed"] == 3
        with pytest.raises(dlx.TooManyHeld):
            sub.take()
        tasks[1].done()
        assert sub.take().tobytes() == b"\3"


def test_a_killed_worker_loses_its_message_to_another_one(c, peer):
    with queue(c, 0) as (pub,):
        worker = peer(
            """
            task = c.subscribe("work", group="g").take()
            say(task.attempt)
            hear()
            """
        )
        pub.publish(b"a")
        assert worker.hear() == "1"
        with c.subscribe("work", group="g", timeout=PATIENCE) as sub:
            assert sub.try_take() is None
            worker.process.send_signal(signal.SIGKILL)
            with sub.take() as task:
                assert text(task) == "a" and task.attempt == 2
            pub.drain(PATIENCE)


def test_workers_share_the_messages_and_lose_none(c, peer):
    code = """
        with c.subscribe("work", group="g", timeout=60) as sub:
            say("ready")
            n = 0
            for task in sub:
                with task:
                    n += int(task.tobytes())
            say(n)
        """
    with queue(c, 0) as (pub,):
        workers = [peer(code) for _ in range(3)]
        assert [w.hear() for w in workers] == ["ready"] * 3
        for i in range(2000):
            pub.publish(str(i).encode())
        pub.drain(PATIENCE)
        pub.close()
        assert sum(int(w.hear()) for w in workers) == sum(range(2000))
        for worker in workers:
            worker.end()


# -- publishers ----------------------------------------------------------------------------


def test_messages_wait_for_the_first_worker(c):
    with queue(c, 0) as (pub,):
        for i in range(5):
            pub.publish(bytes([i]))
        with c.subscribe("work", group="g", timeout=PATIENCE) as sub:
            for i in range(5):
                with sub.take() as task:
                    assert task.tobytes()[0] == i


def test_a_publisher_waits_for_its_groups(c):
    with c.publisher("work", groups=["g"], depth=2, timeout=0.05) as pub:
        pub.publish(b"a")
        pub.publish(b"b")
        with pytest.raises(dlx.Timeout, match="group g has not done message 1"):
            pub.publish(b"c")
        with pytest.raises(dlx.Full, match="group g"):
            pub.publish(b"c", timeout=0)
        with c.subscribe("work", group="g", timeout=PATIENCE) as sub, sub.take():
            pass
        pub.publish(b"c")
        assert c.publishers("work")[0]["on_full"] == "block"


def test_64_messages_wait_by_default(c):
    with c.publisher("work", groups=["g"]) as pub:
        for i in range(64):
            pub.publish(bytes([i]), timeout=0)
        with pytest.raises(dlx.Full):
            pub.publish(b"one more", timeout=0)


def test_a_publisher_that_drops_never_waits_and_counts_what_is_lost(c):
    with c.publisher("work", groups=["g"], on_full="drop", depth=4) as pub:
        for i in range(10):
            pub.publish(bytes([i]))
        with c.subscribe("work", group="g", timeout=PATIENCE) as sub:
            got = []
            while len(got) < 4:
                with sub.take() as task:
                    got.append(task.tobytes()[0])
            assert got == [6, 7, 8, 9]
            until(lambda: group_of(c)["lost"] == 6, "the count of what was lost")


def test_drain_names_what_is_not_done_and_by_whom(c):
    with queue(c) as (pub, sub):
        pub.drain()
        pub.publish(b"a")
        with pytest.raises(dlx.Timeout, match=r"group g has not done message 1, published .* ago"):
            pub.drain(timeout=0.01)
        with sub.take():
            with pytest.raises(dlx.Timeout, match="pid"):
                pub.drain(0)
        pub.drain(PATIENCE)
    with (
        c.publisher("other") as pub,
        pytest.raises(dlx.InvalidError, match=r"drain\(\) waits for groups"),
    ):
        pub.drain()


# -- trouble ----------------------------------------------------------------------------


def test_a_dead_letter_is_told_counted_and_copied(c):
    with (
        c.subscribe("dead", timeout=PATIENCE) as dead,
        queue(c, max_attempts=2, dead_letters="dead") as (pub, sub),
    ):
        pub.publish({"x": np.arange(3)}, meta={"k": 7})
        for attempt in (1, 2):
            with pytest.raises(ZeroDivisionError), sub.take() as task:
                assert task.attempt == attempt
                _ = 1 / 0
        pub.publish(b"next")
        with sub.take() as task:
            assert text(task) == "next"
        pub.drain(PATIENCE)
        with dead.take() as copy:
            assert copy["x"].tolist() == [0, 1, 2] and copy.meta == {"k": 7}
        assert sub.stats()["dead"] == 1
        (event,) = [e for e in sub.events() if e.kind == "dead_letter"]
        assert event.topic == "work" and "1" in event.reason
        assert group_of(c)["dead"] == 1


def test_a_lease_ends_unless_it_is_renewed(c):
    with queue(c, 2, lease=2.0) as (pub, slow, quick):
        pub.publish(b"a")
        task = slow.take()
        ends_unrenewed = time.monotonic() + 2.2
        while time.monotonic() < ends_unrenewed:
            time.sleep(0.1)  # lint-allow: sleep: work of a small part of a lease
            task.renew()
            assert quick.try_take() is None
        with quick.take() as again:
            assert text(again) == "a" and again.attempt == 2
            with pytest.raises(dlx.NotFound, match="lease"):
                task.done()
            for call in (task.done, task.renew, task.give_back):  # it stays another one's
                with pytest.raises(dlx.NotFound):
                    call()
        pub.drain(PATIENCE)


def test_a_block_whose_lease_ended_says_so(c):
    with queue(c, 2, lease=0.05) as (pub, slow, quick):
        pub.publish(b"a")
        with pytest.raises(dlx.NotFound, match="lease"), slow.take() as task, quick.take() as again:
            assert again.attempt == 2
            again.done()
        assert task.released


def test_workers_agree_on_lease_and_attempts(c):
    with queue(c, 1, lease=30, max_attempts=3):
        for other in ({}, {"lease": 30}, {"lease": 20, "max_attempts": 3}):
            with pytest.raises(dlx.InvalidError, match=r"30.*|3.*"):
                c.subscribe("work", group="g", **other)
        c.subscribe("work", group="g", lease=30, max_attempts=3).close()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"group": ""}, dlx.InvalidError, "group"),
        ({"group": "a b"}, dlx.InvalidError, "group"),
        ({"group": "a\0b"}, ValueError, "NUL"),
        ({"group": "a" * 64}, dlx.InvalidError, "group"),
        ({"group": 7}, TypeError, ""),
        ({"group": "g", "latest": True}, dlx.InvalidError, "group"),
        ({"group": "g", "history": 3}, dlx.InvalidError, "group"),
        ({"group": "g", "lease": 0}, ValueError, "lease"),
        ({"group": "g", "lease": -1}, ValueError, ""),
        ({"group": "g", "max_attempts": 0}, ValueError, "max_attempts"),
        ({"group": "g", "max_attempts": 61}, dlx.InvalidError, "attempts"),
        ({"group": "g", "dead_letters": "a//b"}, dlx.InvalidError, ""),
        ({"lease": 1}, ValueError, "group"),
        ({"max_attempts": 3}, ValueError, "group"),
        ({"dead_letters": "d"}, ValueError, "group"),
    ],
)
def test_a_worker_with_impossible_arguments_is_refused(c, arguments, error, words):
    with pytest.raises(error, match=words):
        c.subscribe("work", **arguments)


@pytest.mark.parametrize(
    ("groups", "error"),
    [
        ("g", TypeError),
        ([7], TypeError),
        (["a b"], dlx.InvalidError),
        ([""], dlx.InvalidError),
        (["g", "g"], dlx.InvalidError),
        (["a\0b"], ValueError),
        ([str(i) for i in range(17)], ValueError),
        (None, TypeError),
    ],
)
def test_groups_that_cannot_be_are_refused(c, groups, error):
    with pytest.raises(error):
        c.publisher("work", groups=groups)


def test_16_groups_may_be_declared(c):
    names = [f"g{i}" for i in range(16)]
    with c.publisher("work", groups=names):
        assert [g["name"] for g in c.groups("work")] == names
        assert all(g["declared"] for g in c.groups("work"))


def test_a_forked_child_cannot_do_the_parents_messages(c):
    with queue(c) as (pub, sub):
        pub.publish(b"a")
        with sub.take() as task:
            assert in_child(task.done).startswith("Forked")
            assert in_child(task.give_back).startswith("Forked")
        pub.drain(PATIENCE)
        assert sub.stats()["done"] == 1


# -- what is told ----------------------------------------------------------------------------


def test_groups_and_claims_tell_who_has_what(c):
    with queue(c, 2) as (pub, first, _):
        for i in range(3):
            pub.publish(bytes([i]))
        task = first.take()
        group = group_of(c)
        assert group["topic"] == "work" and group["declared"] and not group["gone"]
        assert (group["waiting"], group["in_flight"], group["done"]) == (2, 1, 0)
        assert (group["n_workers"], group["oldest"], group["max_attempts"]) == (2, 1, 5)
        assert 0 <= time.monotonic_ns() - group["oldest_ns"] < PATIENCE * 1e9
        (claim,) = c.claims(group["publisher"], group["group"])
        assert (claim["seq"], claim["attempt"]) == (1, 1) and claim["link"] > 0
        assert claim["published_ns"] == task.monotonic_ns
        task.done()
        assert c.claims(group["publisher"], group["group"]) == []
        with pytest.raises(dlx.NotFound):
            c.claims(group["publisher"], 99)
        assert c.groups("other/*") == []
        assert [g["name"] for g in c.groups("wo*")] == ["g"]


def test_lists_have_more_than_a_page(c):
    names = [f"g{i:02}" for i in range(16)]
    with contextlib.ExitStack() as stack:
        for topic in ("work", "work", "x"):
            stack.enter_context(c.publisher(topic, groups=names))
        listed = [(g["topic"], g["publisher"], g["name"]) for g in c.groups()]
        assert [x[2] for x in listed] == 3 * names and listed == sorted(listed)
        assert [x[0] for x in listed] == ["work"] * 32 + ["x"] * 16
    with (
        c.publisher("many", groups=["g"], depth=100) as pub,
        c.subscribe("many", group="g", timeout=PATIENCE, max_held=100) as sub,
    ):
        for i in range(100):
            pub.publish(bytes([i]))
        tasks = [sub.take() for _ in range(100)]
        (group,) = c.groups("many")
        claims = c.claims(group["publisher"], group["group"])
        assert [claim["seq"] for claim in claims] == [task.seq for task in tasks]


# -- asyncio ----------------------------------------------------------------------------


def test_tasks_of_an_event_loop_are_workers(c):
    async def main():
        with queue(c, 2) as (pub, *workers):
            got = []

            async def work(sub):
                async for task in sub:
                    with task:
                        got.append(int(text(task)))
                        await asyncio.sleep(0)

            running = [asyncio.create_task(work(sub)) for sub in workers]
            for i in range(200):
                await pub.publish_async(str(i).encode())
            await pub.drain_async(PATIENCE)
            assert sorted(got) == list(range(200))
            pub.close()
            await asyncio.gather(*running)

    asyncio.run(main())


def test_drain_async_times_out(c):
    async def main():
        with queue(c) as (pub, _):
            pub.publish(b"a")
            with pytest.raises(dlx.Timeout, match="group g has not done message 1"):
                await pub.drain_async(0.05)

    asyncio.run(main())
