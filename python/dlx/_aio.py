# SPDX-License-Identifier: Apache-2.0
"""Subscriptions in asyncio: waiting on the descriptor in the running loop, without a thread."""
import asyncio
import os
import weakref

from . import _errors

_GIVEN = object()
_waiting = weakref.WeakValueDictionary()  # by the id of a subscription, which stays as long as somebody waits for it


def _wake(future):
    if not future.done():
        future.set_result(None)


def closing(subscription):
    """Subscription.close(), of any thread: who waits looks again."""
    future = _waiting.get(id(subscription))
    if future is not None and not future.get_loop().is_closed():
        future.get_loop().call_soon_threadsafe(_wake, future)


async def _readable(subscription):
    loop = asyncio.get_running_loop()
    if id(subscription) in _waiting:
        raise _errors.make(-22, "IN_USE", f"another task waits for topic {subscription.topic}: one at a time may")
    fd = os.dup(subscription.fileno())  # that of a subscription that is closed is soon another's
    try:
        future = _waiting[id(subscription)] = loop.create_future()
        loop.add_reader(fd, _wake, future)
        try:
            await future
        finally:
            loop.remove_reader(fd)
            del _waiting[id(subscription)]
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
