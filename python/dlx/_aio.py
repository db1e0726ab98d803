# SPDX-License-Identifier: Apache-2.0
"""Subscriptions in asyncio: waiting on the descriptor in the running loop, without a thread."""
import asyncio

from . import _errors

_GIVEN = object()
_waiting = set()  # descriptors: a loop has one reader for each


def _wake(future):
    if not future.done():
        future.set_result(None)


async def _readable(subscription):
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    fd = subscription.fileno()
    if fd in _waiting:
        raise _errors.make(-22, "IN_USE", f"another task waits for topic {subscription.topic}: one at a time may")
    _waiting.add(fd)
    loop.add_reader(fd, _wake, future)
    try:
        await future
    finally:
        loop.remove_reader(fd)
        _waiting.discard(fd)


async def _wait(subscription):
    """A message, or False when the last publisher has left."""
    while True:
        message = subscription._poll()
        if message is not None:
            return message
        await _readable(subscription)


async def _poll(subscription, timeout):
    if timeout is None:
        return await _wait(subscription)
    message = subscription._poll()  # what is there needs no timer
    if message is not None:
        return message
    try:
        async with asyncio.timeout(timeout):
            return await _wait(subscription)
    except TimeoutError as e:
        if isinstance(e, _errors.Error):
            raise
        raise _errors.make(-3, "TIMEOUT", f"topic {subscription.topic}: no message within {timeout:g} s") from None


async def take(subscription, timeout=_GIVEN):
    """Subscription.take_async()."""
    message = await _poll(subscription, subscription.timeout if timeout is _GIVEN else timeout)
    if message is False:
        raise _errors.make(-17, "PUBLISHER_GONE",
                           f"topic {subscription.topic}: the last publisher has left, and everything was taken")
    return message


async def next_message(subscription):
    """Subscription.__anext__()."""
    message = await _poll(subscription, subscription.timeout)
    if message is False:
        raise StopAsyncIteration
    return message
