# SPDX-License-Identifier: Apache-2.0
"""The methods of dlx.Publisher for asyncio, which is imported only when one of them is called."""

from ._dlx import Publisher
from ._tensor import add


class Methods:
    """Methods of a Publisher."""

    def publish_async(self, tensors, *, timeout=..., **arguments):
        """Does as publish(), for asyncio: a coroutine. Where publish() would wait for subscribers,
        it waits on the publisher's descriptor in the running loop, without a thread. Each attempt
        counts as `refused` in stats(). The tensors must not change before it is done."""
        from . import _aio

        return _aio.publish(self, tensors, timeout=timeout, **arguments)

    def wait_async(self, n=1, timeout=None):
        """Does as wait(), for asyncio: a coroutine."""
        from . import _aio

        return _aio.wait(self, n, timeout)

    def drain_async(self, timeout=None):
        """Does as drain(), for asyncio: a coroutine."""
        from . import _aio

        return _aio.drain(self, timeout)


add(Methods, Publisher)
