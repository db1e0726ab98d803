# SPDX-License-Identifier: Apache-2.0
"""Calls: ask one of the workers of a service, and get its answer."""

import asyncio
import contextlib
import threading
import time

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, alarm, in_child, is_in_use, run_threads, until


@contextlib.contextmanager
def pair(c, n_workers=1, max_held=None, **kwargs):
    """A caller, and workers of its service."""
    with contextlib.ExitStack() as stack:
        yield (
            stack.enter_context(c.caller("svc", **kwargs)),
            *(
                stack.enter_context(c.serve("svc", max_held=max_held, timeout=PATIENCE))
                for _ in range(n_workers)
            ),
        )


@contextlib.contextmanager
def serving(service, work, n=1):
    """Another thread answers `n` requests by work(request)."""

    def serve():
        for _ in range(n):
            with contextlib.suppress(ZeroDivisionError), service.take() as request:
                work(request)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def double(request):
    request.reply(2 * np.asarray(request))


def started(k, *args, **kwargs):
    """Begins a call, as call_async() does, and returns its number."""
    return k._begin(*args, **{"timeout": PATIENCE, **kwargs})


def ended(k):
    """The next call that ends: its number, and its reply or exception."""
    result = None

    def take():
        nonlocal result
        result = k._take()
        return result is not None

    until(take, "the end of a call")
    return result


# -- calls and replies ---------------------------------------------------------------------------


def test_a_call_returns_the_reply(c):
    with pair(c) as (k, service), serving(service, double, 3):
        for i in range(3):
            reply = k.call(np.arange(4) + i, timeout=PATIENCE)
            assert reply.tolist() == [2 * (j + i) for j in range(4)]
        assert k.stats()["replies"] == 3 and k.stats()["n_in_flight"] == 0


def test_a_loop_serves(c, peer):
    worker = peer(
        """
        import numpy as np
        for request in c.serve("svc"):
            with request:
                request.reply(np.asarray(request) + 1)
                if request.meta:
                    break
        say("left")
        """
    )
    with c.caller("svc") as k:
        k.wait(PATIENCE)
        assert k.call(np.arange(3), timeout=PATIENCE).tolist() == [1, 2, 3]
        assert k.call(np.arange(2), meta={"last": 1}, timeout=PATIENCE).tolist() == [1, 2]
        assert worker.hear() == "left"
        worker.end()


def test_sets_and_metadata_travel_both_ways(c):
    def work(request):
        assert request.meta == {"threshold": 0.5} and request.names == ["rgb", "depth"]
        assert request.topic == request.message.topic == "svc" and len(request) == 2
        assert request["depth"].tolist() == [1, 2]
        assert sorted(request) == ["depth", "rgb"]
        request.reply([request["rgb"], request.message["depth"]], meta=b"seen")

    with pair(c) as (k, service), serving(service, work):
        reply = k.call(
            {"rgb": np.zeros((2, 3), "uint8"), "depth": np.array([1, 2])},
            meta={"threshold": 0.5},
            timeout=PATIENCE,
        )
        assert reply[0].shape == (2, 3) and reply[1].tolist() == [1, 2]
        assert reply.meta == b"seen"


def test_nested_sets_travel_too(c):
    with pair(c) as (k, service), serving(service, lambda r: r.reply({"a": {"n": 3, "x": r[0]}})):
        reply = k.call([np.arange(3)], timeout=PATIENCE)
        assert reply["a"]["n"] == 3 and reply["a"]["x"].tolist() == [0, 1, 2]


def test_a_message_goes_on_as_it_is(c):
    with pair(c) as (k, service), serving(service, lambda r: r.reply(r.message)):
        assert k.call({"x": np.arange(3)}, meta={"k": 1}, timeout=PATIENCE).meta == {"k": 1}


def test_tensors_that_were_allocated_here_are_passed_without_a_copy(c):
    def work(request):
        x = request.empty_like(request.message)
        np.asarray(x)[:] = np.asarray(request) + 1
        request.reply(x, strict=True)
        with pytest.raises(ValueError, match="published"):
            np.asarray(x)

    with pair(c) as (k, service), serving(service, work):
        x = k.empty(1000, "int64")
        np.asarray(x)[:] = 7
        assert k.call(x, strict=True, timeout=PATIENCE).numpy().sum() == 8000
        with pytest.raises(ValueError, match="published"):
            np.asarray(x)
        spare = k.empty_like({"a": np.zeros(3), "b": np.zeros((2, 2), "uint8")})
        assert spare["b"].shape == (2, 2) and k.zeros(3).tolist() == [0, 0, 0]


def test_copies_are_refused_or_told(c):
    with pair(c) as (k, _):
        with pytest.raises(dlx.WouldCopy):
            k.call(np.arange(3), strict=True)
        x = k.empty(3)
        _array = np.asarray(x)
        with pytest.raises(dlx.WouldCopy, match="array"):
            k.call(x, strict=True)
        with pytest.warns(dlx.CopyWarning, match="array"), pytest.raises(dlx.Timeout):
            k.call(x, timeout=0)
        assert k.stats()["calls"] == 1


def test_replies_and_requests_outlive_caller_and_service(c):
    with pair(c) as (k, service):
        number = started(k, np.arange(1000))
        request = service.take()
        request.reply(request.message)
        x = np.asarray(request)
        request.release()
        assert request.released and request.message.released
        done, reply = ended(k)
        assert done == number
    assert x.sum() == reply.numpy().sum() == 499500


def test_a_worker_has_several_requests_at_once_and_answers_in_any_order(c):
    with pair(c, max_held=3) as (k, service):
        numbers = [started(k, np.array([i])) for i in range(4)]
        requests = [service.take() for _ in range(3)]
        assert service.stats()["n_held"] == 3
        with pytest.raises(dlx.TooManyHeld):
            service.take(0)
        for request in reversed(requests):
            request.reply(request.message)
        with service.take() as request:
            request.reply(request.message)
        for i in (2, 1, 0, 3):
            number, reply = ended(k)
            assert (number, reply.tolist()) == (numbers[i], [i])


def test_requests_wait_for_the_first_worker(c):
    with c.caller("svc") as k:
        number = started(k, b"x")
        with c.serve("svc", timeout=PATIENCE) as service, service.take() as request:
            request.reply(request.message)
        assert ended(k)[0] == number


# -- errors --------------------------------------------------------------------------------------


def test_an_error_has_text_and_code(c):
    with pair(c) as (k, service), serving(service, lambda r: r.error("no such model: ü", -7)):
        with pytest.raises(dlx.CallError, match="no such model: ü") as e:
            k.call(b"x", timeout=PATIENCE)
        assert e.value.worker_code == -7 and e.value.name == "CALL_FAILED"
        assert k.stats()["failed"] == 1 and service.stats()["errors"] == 1


def test_an_exception_in_the_block_is_answered_and_goes_on(c):
    with pair(c) as (k, service):
        started(k, b"x")
        with pytest.raises(ZeroDivisionError), service.take() as request:
            _ = 1 / 0
        assert request.released
        _, error = ended(k)
        assert isinstance(error, dlx.CallError) and error.worker_code == 0
        assert "ZeroDivisionError: division by zero" in str(error)
        started(k, b"x")
        with pytest.raises(KeyboardInterrupt), service.take():
            raise KeyboardInterrupt
        assert str(ended(k)[1]).endswith("KeyboardInterrupt")


def test_an_exception_after_the_reply_changes_nothing(c):
    with pair(c) as (k, service):
        started(k, b"x")
        with pytest.raises(ZeroDivisionError), service.take() as request:
            request.reply(b"y")
            _ = 1 / 0
        assert ended(k)[1].tobytes() == b"y"


def test_a_request_that_is_let_go_fails(c):
    def end_of_block(request):
        with request:
            pass

    with pair(c) as (k, service):
        for let_go in (end_of_block, lambda r: r.release(), lambda r: None):
            started(k, b"x")
            let_go(service.take())
            assert "let the request go without a reply" in str(ended(k)[1])
        started(k, b"x")
        request = service.take()
        service.close()
        assert "let the request go" in str(ended(k)[1])
        for call in (lambda: request.reply(b"y"), lambda: request.empty(3)):
            with pytest.raises(dlx.Closed, match="the service of svc is closed"):
                call()


def test_there_is_one_answer(c):
    with pair(c) as (k, service):
        started(k, b"x")
        with service.take() as request:
            assert not request.answered
            request.reply(b"y")
            assert request.answered
            for call in (lambda: request.reply(b"z"), lambda: request.error("z")):
                with pytest.raises(dlx.NotFound, match="answered before"):
                    call()
        for call in (lambda: request.reply(b"z"), lambda: request.empty(3), request.__enter__):
            with pytest.raises(dlx.Closed, match="released"):
                call()
        assert ended(k)[1].tobytes() == b"y"


def test_a_reply_that_is_none_leaves_the_request_open(c):
    with pair(c) as (k, service):
        started(k, b"x")
        with service.take() as request:
            with pytest.raises(TypeError):
                request.reply(object())
            with pytest.raises(TypeError):
                request.reply(b"y", meta=3)
            with pytest.raises(TypeError):
                request.error(7)
            with pytest.raises(OverflowError, match="32 bits"):
                request.error("x", 2**31)
            assert not request.answered
            request.reply(b"y")
        assert ended(k)[1].tobytes() == b"y"


# -- time ----------------------------------------------------------------------------------------


def test_a_time_out_says_who_has_the_request(c):
    with c.caller("svc") as k:
        with pytest.raises(dlx.Timeout, match="no worker serves"):
            k.call(b"x", timeout=0.01)
        with pytest.raises(dlx.Timeout):
            k.wait(0)
        with c.serve("svc", timeout=PATIENCE) as service:
            k.wait(PATIENCE)
            with pytest.raises(dlx.Timeout, match="none of its workers has the request: .*pid"):
                k.call(b"x", timeout=0.01)
            started(k, b"y", timeout=0.2)
            request = service.take()
            assert request.message.tobytes() == b"y"  # the first two are over
            _, error = ended(k)
            assert isinstance(error, dlx.Timeout) and "pid" in str(error)
            assert request.cancelled
            request.reply(np.array([9]))  # late: the next call does not get it
            with serving(service, double):
                assert k.call(np.array([1]), timeout=PATIENCE).item() == 2
            assert k.stats()["late"] == 1 and k.stats()["timed_out"] == 3
            assert service.stats()["expired"] == 2


def test_the_deadline_travels(c):
    with pair(c) as (k, service):
        started(k, b"x", timeout=50)
        with service.take() as request:
            assert 0 < request.deadline - time.monotonic() <= 50 and not request.cancelled
        started(k, b"x", timeout=None)
        with service.take() as request:
            assert request.deadline is None


def test_full_when_max_in_flight_calls_are_in_flight(c):
    with pair(c, max_in_flight=2) as (k, service):
        started(k, b"1")
        started(k, b"2")
        for call in (lambda: k.call(b"3"), lambda: started(k, b"3")):
            with pytest.raises(dlx.Full, match="max_in_flight"):
                call()
        assert k.stats()["n_in_flight"] == 2 and k.stats()["n_workers"] == 1
        with service.take() as request:
            request.reply(b"y")
        ended(k)
        started(k, b"3")


def test_a_signals_handler_ends_a_call(c):
    with pair(c) as (k, service):
        with alarm(), pytest.raises(ZeroDivisionError):
            k.call(b"x")
        assert k.stats()["cancelled"] == 1
        with alarm(), pytest.raises(ZeroDivisionError):
            service.take()
        assert service.stats()["expired"] == 1  # it was not handed out
        with serving(service, double):
            assert k.call(np.arange(2), timeout=PATIENCE).tolist() == [0, 2]


# -- workers that die, and other trouble ------------------------------------------------------


WORKER = """
    request = c.serve("svc").take()
    say("has it")
    hear()
    """


def test_a_killed_worker_is_told_at_once(c, peer):
    with c.caller("svc") as k:
        worker = peer(WORKER)
        started(k, b"x")
        assert worker.hear() == "has it"
        worker.kill()
        _, error = ended(k)
        assert isinstance(error, dlx.WorkerGone) and str(worker.process.pid) in str(error)
        assert k.stats()["workers_gone"] == 1


def test_another_worker_gets_what_is_idempotent(c, peer):
    with c.caller("svc") as k:
        worker = peer(WORKER)
        started(k, b"x", idempotent=True)
        assert worker.hear() == "has it"
        with c.serve("svc", timeout=PATIENCE) as service:
            worker.kill()
            with service.take() as request:
                assert request.message.attempt == 2
                request.reply(b"y")
        assert ended(k)[1].tobytes() == b"y"


def test_close_cancels_and_ends_waits(c):
    with pair(c) as (k, service):
        requests = []

        def close_caller():
            requests.append(service.take())
            k.close()

        def close_service():
            until(lambda: is_in_use(service))
            service.close()

        def ends(call):
            with pytest.raises(dlx.Closed):
                call()

        run_threads([lambda: ends(lambda: k.call(b"x")), close_caller])
        assert requests[0].cancelled
        requests.pop().reply(b"in vain")
        run_threads([lambda: ends(service.take), close_service])
        for call in (lambda: k.call(b"x"), k.wait, k.stats, k.fileno, lambda: k.empty(1)):
            ends(call)


def test_a_request_may_be_let_go_while_another_thread_takes(c):
    with pair(c, max_held=2) as (k, service):
        started(k, b"1")
        request = service.take()
        taking = threading.Thread(target=lambda: service.take().reply(b"2"))
        taking.start()
        until(lambda: is_in_use(service))
        request.release()  # is answered when the other thread has left
        assert request.released
        number = started(k, b"2")
        taking.join(PATIENCE)
        results = dict(ended(k) for _ in range(2))
        assert results.pop(number).tobytes() == b"2"
        assert "let the request go" in str(results.popitem()[1])


def test_a_request_that_the_arguments_of_its_call_release_is_closed(c):
    class Releases:
        def __index__(self):
            request.release()
            return 4

    with pair(c) as (k, service):
        started(k, b"a")
        request = service.take()
        with pytest.raises(dlx.Closed, match="released"):
            request.empty(Releases())


def test_handles_of_a_forked_child_are_refused(c):
    with pair(c) as (k, service):
        started(k, b"x")
        request = service.take()
        assert in_child(lambda: k.call(b"x")).startswith("Forked")
        assert in_child(service.take).startswith("Forked")
        assert in_child(lambda: request.reply(b"x")).startswith("Forked")
        request.reply(b"y")
        assert ended(k)[1].tobytes() == b"y"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda c: c.caller("a//b"), dlx.InvalidError, ""),
        (lambda c: c.caller("a/*"), dlx.InvalidError, ""),
        (lambda c: c.caller("a", max_in_flight=0), ValueError, "1 or more"),
        (lambda c: c.caller("a", max_in_flight=1025), ValueError, "1024"),
        (lambda c: c.caller("a", spin="often"), ValueError, "never"),
        (lambda c: c.serve("a", max_held=0), ValueError, "1 or more"),
        (lambda c: c.serve("a", max_held=5000), dlx.InvalidError, "4096"),
        (lambda c: c.serve("a", timeout=-1), ValueError, ""),
        (lambda c: c.caller("a").call(b"x", timeout=-1), ValueError, ""),
        (lambda c: c.caller("a").call(b"x", timeouts=1), TypeError, "idempotent"),
        (lambda c: c.caller("a").call(b"x", b"y"), TypeError, "positional"),
        (lambda c: c.caller("a").call(b"x", stream=-1), ValueError, "stream"),
        (lambda c: c.caller("a").call(b"x", meta=b"x" * 65536), dlx.InvalidError, "65"),
        (lambda c: c.caller("a").call({}), dlx.InvalidError, "at least one"),
    ],
)
def test_impossible_arguments_are_refused(c, call, error, words):
    with pytest.raises(error, match=words):
        call(c)


def test_objects_say_what_they_are(c):
    with pair(c) as (k, service):
        assert repr(k) == "<dlx.Caller of svc>" and repr(service) == "<dlx.Service of svc>"
        assert service.timeout == PATIENCE
        started(k, np.arange(3))
        with service.take() as request:
            assert repr(request).startswith("<dlx.Request: <dlx.Message topic=svc")
            request.reply(b"y")
            assert "answered" in repr(request)
        assert repr(request) == "<dlx.Request, released>"


# -- asyncio -------------------------------------------------------------------------------------


async def answer(service, n):
    for _ in range(n):
        with await service.take_async() as request:
            await asyncio.sleep(0)
            request.reply(2 * np.asarray(request))


def test_several_tasks_call_at_once(c):
    async def main():
        with pair(c, 2, max_in_flight=20) as (k, *services):
            answering = [asyncio.create_task(answer(s, 10)) for s in services]
            replies = await asyncio.gather(
                *(k.call_async(np.array([i]), timeout=PATIENCE) for i in range(20))
            )
            assert [reply.item() for reply in replies] == [2 * i for i in range(20)]
            await asyncio.gather(*answering)
            assert k.stats()["n_in_flight"] == 0

    asyncio.run(main())


def test_async_for_serves(c):
    async def main():
        with pair(c) as (k, service):

            async def serve():
                async for request in service:
                    with request:
                        request.reply(request.message)

            serving = asyncio.create_task(serve())
            for i in range(5):
                reply = await k.call_async(np.array([i]), timeout=PATIENCE)
                assert reply.item() == i
            service.close()
            with pytest.raises(dlx.Closed):
                await serving

    asyncio.run(main())


def test_async_errors_are_those_of_call(c):
    async def main():
        with pair(c, max_in_flight=2) as (k, service):
            with pytest.raises(dlx.Timeout, match="none of its workers has the request: .*pid"):
                await k.call_async(b"x", timeout=0.05)
            first = asyncio.create_task(k.call_async(b"1"))
            second = asyncio.create_task(k.call_async(b"2"))
            with pytest.raises(ZeroDivisionError), await service.take_async():
                _ = 1 / 0
            with pytest.raises(dlx.CallError, match="ZeroDivisionError"):
                await first
            third = asyncio.create_task(k.call_async(b"3"))
            await asyncio.sleep(0)
            with pytest.raises(dlx.Full):
                await k.call_async(b"4")
            for _ in range(2):
                with await service.take_async() as request:
                    request.error("no", 5)
            for task in (second, third):
                with pytest.raises(dlx.CallError) as e:
                    await task
                assert e.value.worker_code == 5
            with pytest.raises(dlx.Timeout):
                await service.take_async(0.01)
            with pytest.raises(dlx.Timeout):
                await service.take_async(0)

    asyncio.run(main())


def test_a_task_that_is_cancelled_cancels_its_call(c):
    async def main():
        with pair(c) as (k, service):
            calling = asyncio.create_task(k.call_async(b"x"))
            with await service.take_async() as request:
                calling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calling
                assert request.cancelled and k.stats()["cancelled"] == 1
                request.reply(b"late")
            serving = asyncio.create_task(answer(service, 1))
            assert (await k.call_async(np.array([2]), timeout=PATIENCE)).item() == 4
            await serving

    asyncio.run(main())


def test_close_ends_tasks_that_wait(c):
    async def main():
        with pair(c) as (k, _):
            calling = [asyncio.create_task(k.call_async(b"x")) for _ in range(3)]
            await asyncio.sleep(0)
            k.close()
            for task in calling:
                with pytest.raises(dlx.Closed):
                    await task

    asyncio.run(main())


def test_a_caller_goes_from_one_loop_to_the_next(c):
    with pair(c) as (k, service):
        for _ in range(2):

            async def main():
                serving = asyncio.create_task(answer(service, 1))
                assert (await k.call_async(np.array([2]), timeout=PATIENCE)).item() == 4
                await serving

            asyncio.run(main())
