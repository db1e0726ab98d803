# SPDX-License-Identifier: Apache-2.0
"""Subscriptions and publishers in asyncio: waiting on the descriptor in the running loop, without a thread."""
import asyncio
import os
import weakref

from . import _errors

_GIVEN = object()
_waiting = weakref.WeakValueDictionary()  # by the id of a handle, which stays as long as somebody waits for it


def _wake(future):
    if not future.done():
        future.set_result(None)


def closing(handle):
    """close(), of any thread: who waits looks again."""
    future = _waiting.get(id(handle))
    if future is not None and not future.get_loop().is_closed():
        future.get_loop().call_soon_threadsafe(_wake, future)


async def _readable(handle):
    loop = asyncio.get_running_loop()
    if id(handle) in _waiting:
        raise _errors.make(-22, "IN_USE", f"another task waits for topic {handle.topic}: one at a time may")
    fd = os.dup(handle.fileno())  # that of a handle which is closed is soon another's
    try:
        future = _waiting[id(handle)] = loop.create_future()
        loop.add_reader(fd, _wake, future)
        try:
            await future
        finally:
            loop.remove_reader(fd)
            del _waiting[id(handle)]
    finally:
        os.close(fd)


async def _wait(subscription, n, stream):
    """A message (n > 0: a list of 1 to n)."""
    while True:
        message = subscription._poll(n, stream)
        if message is not None:
            return message
        await _readable(subscription)


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
        raise _errors.make(-3, "TIMEOUT", f"topic {subscription.topic}: no message within {timeout:g} s") from None


async def take(subscription, n, stream, timeout=_GIVEN):
    """Subscription.take_async(), and with n > 0 take_many_async()."""
    return await _poll(subscription, subscription.timeout if timeout is _GIVEN else timeout, n, stream)


async def next_message(subscription):
    """Subscription.__anext__()."""
    try:
        return await _poll(subscription, subscription.timeout)
    except _errors.PublisherGone:
        raise StopAsyncIteration from None


async def _attempt(publisher, call, timeout):
    """The result of call(), which does not wait, as soon as it does not fail for want of room or subscribers."""
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
            raise _errors.make(-3, "TIMEOUT", str(error)) from None


async def publish(publisher, tensors, *, timeout=_GIVEN, **kwargs):
    """Publisher.publish_async()."""
    timeout = publisher.timeout if timeout is _GIVEN else timeout
    if timeout == 0:
        return publisher.publish(tensors, timeout=0, **kwargs)
    return await _attempt(publisher, lambda: publisher.publish(tensors, timeout=0, **kwargs), timeout)


async def wait(publisher, n=1, timeout=None):
    """Publisher.wait_async()."""
    return await _attempt(publisher, lambda: publisher.wait(n, 0), timeout)
