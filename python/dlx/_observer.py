# SPDX-License-Identifier: Apache-2.0
"""Methods of dlx.Observer that need no C."""

from ._dlx import Observer
from ._subscription import HandleMethods
from ._tensor import add


class Methods:
    """Methods of an Observer."""

    def next_async(self, timeout=None):
        """Does as next(), for asyncio: a coroutine that waits on the observer's descriptor in the
        running loop, without a thread."""
        from . import _aio

        return _aio.next_change(self, timeout)

    def __anext__(self):
        return self.next_async()


add(Methods, Observer)
add(HandleMethods, Observer)
