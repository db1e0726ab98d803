# SPDX-License-Identifier: Apache-2.0
"""Subscriptions, publishers, callers, services and observers in asyncio: waiting on the descriptor
in the running loop, without a thread.
"""

import asyncio
import os

from . import _errors

_readers: dict = {}  # by the id of a handle, until closing() names it


class _Reader:
    """The descriptor of a handle in an event loop, where it stays between waits: adding and
    removing it takes four system calls.
    """

    def __init__(self, handle, loop):
        self.loop, self.future = loop, None
        self.is_added = self.is_stale = False
        self.fd = os.dup(handle.fileno())  # that of a handle which is closed is soon another's

    def _ready(self):
        # the loop saw this before the task that was woken could take what there was, or will tell
        # it again
        if self.is_stale:
            self.is_stale = False
        elif self.is_waited_for():
            self.is_stale = True
            self.future.set_result(None)
        else:  # the loop would go round and round
            self._remove()

    def _remove(self):
        if self.is_added:
            self.is_added = False
            self.loop.remove_reader(self.fd)

    def is_waited_for(self):
        return self.future is not None and not self.future.done()

    async def wait(self):
        if not self.is_added:
            self.loop.add_reader(self.fd, self._ready)
            self.is_added, self.is_stale = True, False
        self.future = self.loop.create_future()
        try:
            await self.future
        finally:
            self.future = None

    def _end(self):
        if not self.loop.is_closed():
            self._remove()
        self.__del__()
        if self.is_waited_for():
            self.future.set_result(None)

    def end(self):
        """Makes waiting tasks look again. Any thread may call it."""
        try:
            self.loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop was closed
            self.__del__()

    def __del__(self):
        """Also when the loop ends without calling what it was asked to."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)


def closing(key):
    """The end of the handle with this id, in any thread."""
    reader = _readers.pop(key, None)
    if reader is not None:
        reader.end()


async def _readable(handle):
    loop = asyncio.get_running_loop()
    reader = _readers.get(id(handle))
    if reader is not None and not reader.loop.is_closed() and reader.is_waited_for():
        raise _errors.make(
            -22, "IN_USE", f"another task waits for topic {handle.topic}: one task at a time"
        )
    if reader is None or reader.loop is not loop:
        closing(id(handle))
        reader = _readers[id(handle)] = _Reader(handle, loop)
    await reader.wait()


async def _wait(subscription, n, stream):
    """A message (n > 0: a list of 1 to n)."""
    while True:
        message = subscription._poll(n, stream)
        if message is not None:
            return message
        if subscription._hint_after is None:
            await _readable(subscription)
            continue
        try:
            async with asyncio.timeout(subscription._hint_after):
                await _readable(subscription)
        except TimeoutError:
            subscription._hint()


async def _poll(subscription, timeout, n=0, stream=None):
    if timeout is None:
        return await _wait(subscription, n, stream)
    message = subscription._poll(n, stream)  # what is there needs no timer
    if message is not None:
        return message
    try:
        async with asyncio.timeout(timeout):
            return await _wait(subscription, n, stream)
    except TimeoutError as e:
        if isinstance(e, _errors.Error):
            raise
    return subscription._poll(n, stream, timeout)


async def take(subscription, n, stream, timeout=...):
    """Subscription.take_async(), and with n > 0 take_many_async()."""
    return await _poll(subscription, subscription.timeout if timeout is ... else timeout, n, stream)


async def next_message(subscription):
    """Subscription.__anext__()."""
    try:
        return await _poll(subscription, subscription.timeout)
    except _errors.PublisherGone:
        raise StopAsyncIteration from None


async def _attempt(publisher, call, timeout, last=None):
    """The result of call(), which does not wait, as soon as it does not fail for want of room or
    subscribers; or in the end, of last().
    """
    loop = asyncio.get_running_loop()
    until = None if timeout is None else loop.time() + timeout
    publisher.fileno()  # before the first attempt, which is to make it readable
    while True:
        try:
            return call()
        except (_errors.Full, _errors.Timeout) as e:
            error = e
        try:
            async with asyncio.timeout_at(until):
                await _readable(publisher)
        except TimeoutError as e:
            if isinstance(e, _errors.Error):
                raise
            if last:
                return last()
            raise _errors.make(-3, "TIMEOUT", str(error)) from None


async def publish(publisher, tensors, *, timeout=..., **kwargs):
    """Publisher.publish_async()."""
    timeout = publisher.timeout if timeout is ... else timeout
    if timeout == 0:
        return publisher.publish(tensors, timeout=0, **kwargs)
    return await _attempt(
        publisher, lambda: publisher.publish(tensors, timeout=0, **kwargs), timeout
    )


async def wait(publisher, n=1, timeout=None):
    """Publisher.wait_async()."""
    # Only a call that waits asks the daemon whom it knows.
    return await _attempt(
        publisher, lambda: publisher.wait(n, 0), timeout, lambda: publisher.wait(n, 0.001)
    )


async def drain(publisher, timeout=None):
    """Publisher.drain_async()."""
    return await _attempt(
        publisher, lambda: publisher.drain(0), timeout, lambda: publisher.drain(0)
    )


async def take_request(service, timeout, stream):
    """Service.take_async()."""
    if timeout == 0:
        return service.take(0, stream=stream)
    return await _attempt(
        service,
        lambda: service.take(0, stream=stream),
        timeout,
        lambda: service.take(1e-9, stream=stream),  # which says why there is none
    )


async def next_change(observer, timeout):
    """Observer.next_async()."""
    if timeout == 0:
        return observer.next(0)
    return await _attempt(observer, lambda: observer.next(0), timeout, lambda: observer.next(1e-9))


class _Calls(_Reader):
    """The calls of a caller that tasks wait for."""

    def __init__(self, caller, loop):
        super().__init__(caller, loop)
        self.caller, self.futures = None, {}  # the caller, while there are futures

    def is_waited_for(self):
        return bool(self.futures)

    def _ready(self):
        """Tells tasks the results there are, or, if the caller cannot be asked, why."""
        try:
            while self.futures and (ended := self.caller._take()) is not None:
                number, result = ended
                future = self.futures.get(number)
                if future is None or future.done():
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        except _errors.Error as e:
            for future in self.futures.values():
                if not future.done():
                    future.set_exception(_errors.make(e.code, e.name, str(e)))

    async def result(self, caller, number):
        future = self.futures[number] = self.loop.create_future()
        self.caller = caller
        if not self.is_added:
            self.is_added = True
            self.loop.add_reader(self.fd, self._ready)
        is_over = False
        try:
            ret = await future
            is_over = True
            return ret
        finally:
            del self.futures[number]
            if not self.futures:
                self.caller = None
                self._remove()
            if not is_over and not caller.closed:
                caller._cancel(number)  # which does nothing if it has failed

    def _end(self):
        if self.futures:
            self._ready()
        if not self.loop.is_closed():
            self._remove()
        self.__del__()


async def call(caller, tensors, **arguments):
    """Caller.call_async()."""
    loop = asyncio.get_running_loop()
    calls = _readers.get(id(caller))
    if calls is not None and calls.loop is not loop and calls.is_waited_for():
        raise _errors.make(
            -22, "IN_USE", f"a task of another event loop waits for calls of topic {caller.topic}"
        )
    if calls is None or calls.loop is not loop:
        closing(id(caller))
        calls = _readers[id(caller)] = _Calls(caller, loop)
    return await calls.result(caller, caller._begin(tensors, **arguments))
