# SPDX-License-Identifier: Apache-2.0
"""Methods of dlx.Subscription that need no C, and select()."""

import math
import select as _select
import time
from collections.abc import Iterable

from ._dlx import Connection, Publisher, Subscription
from ._tensor import add


def _given(timeout):
    return () if timeout is ... else (timeout,)


class HandleMethods:
    """Methods of connections, publishers and subscriptions."""

    def __reduce__(self):
        raise TypeError(
            f"a dlx.{type(self).__name__} belongs to its process and cannot be copied or pickled: "
            "call dlx.connect() in the other process and make one there"
        )


class Methods:
    """Methods of a Subscription."""

    def try_take(self, *, stream=None):
        """Takes the next dlx.Message; None if there is none now. Otherwise like take()."""
        return self._poll(0, stream)

    def take_async(self, timeout=..., *, stream=None):
        """Does as take(), for asyncio: a coroutine that waits on the subscription's descriptor in
        the running loop, without a thread."""
        from . import _aio

        self._check(None, stream, *_given(timeout))
        return _aio.take(self, 0, stream, timeout)

    def take_many_async(self, n, timeout=..., *, stream=None):
        """Does as take_many(), for asyncio: a coroutine, like take_async()."""
        from . import _aio

        self._check(n, stream, *_given(timeout))
        return _aio.take(self, n, stream, timeout)

    def __anext__(self):
        from . import _aio

        return _aio.next_message(self)


def _listed(subscriptions: Iterable[Subscription]) -> list[Subscription]:
    if isinstance(subscriptions, Subscription):  # iterating over one takes its messages
        raise TypeError(
            "select() takes a list of subscriptions, as in select([subscription], timeout)"
        )
    subscriptions = list(subscriptions)
    for each in subscriptions:
        if not isinstance(each, Subscription):
            raise TypeError(
                "select() takes a list of subscriptions, and this one has an item of type "
                f"{type(each).__name__}: {each!r}"
            )
    return subscriptions


def select(
    subscriptions: Iterable[Subscription], timeout: float | None = None
) -> list[Subscription]:
    """Waits for several subscriptions, and returns a list of those whose take() does not wait.

    Such a take() returns a message, or raises, as with dlx.PublisherGone. The list is empty if
    `timeout` seconds pass first. 0 does not wait; None waits without a limit. Ctrl-C interrupts the
    wait, and other threads run during it.
    """
    subscriptions = _listed(subscriptions)
    if not subscriptions and timeout is None:
        raise ValueError("select() of no subscriptions and without a timeout would wait for ever")
    until = math.inf if timeout is None else time.monotonic() + timeout
    poll = None
    while True:
        ready = [each for each in subscriptions if each._ready()]
        left = until - time.monotonic()
        if ready or left <= 0:
            return ready
        if poll is None:
            poll = _select.poll()
            for each in subscriptions:
                poll.register(each.fileno(), _select.POLLIN)
        # close() of another thread wakes it, as a rule: the daemon answers, but what poll() sleeps
        # on may be closed before it looks. So it looks again after 1 s.
        poll.poll(math.ceil(min(left, 1) * 1000))


select.__module__ = "dlx"
add(Methods, Subscription)
for _type in (Connection, Publisher, Subscription):
    add(HandleMethods, _type)
