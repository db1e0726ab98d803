# SPDX-License-Identifier: Apache-2.0
"""Methods of dlx.Caller, dlx.Service and dlx.Request that need no C."""

import contextlib

from . import _errors, _message  # which adds what requests lend
from ._dlx import Caller, Request, Service
from ._subscription import HandleMethods
from ._tensor import add


class CallerMethods:
    """Methods of a Caller."""

    def call_async(self, tensors, **arguments):
        """Does as call(), for asyncio: a coroutine that waits on the caller's descriptor in the
        running loop, without a thread. Up to max_in_flight tasks may wait at once, and replies come
        in any order. A task that is cancelled cancels its call. The tensors must not change before
        the coroutine has run for the first time."""
        from . import _aio

        return _aio.call(self, tensors, **arguments)


class ServiceMethods:
    """Methods of a Service."""

    def take_async(self, timeout=..., *, stream=None):
        """Does as take(), for asyncio: a coroutine that waits on the service's descriptor in the
        running loop, without a thread."""
        from . import _aio

        return _aio.take_request(self, self.timeout if timeout is ... else timeout, stream)

    def __anext__(self):
        return self.take_async()


def _words(kind, error):
    """Returns the type and text of an exception."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{kind.__name__}: {text}" if text else kind.__name__


class RequestMethods:
    """Methods of a Request."""

    def __exit__(self, kind, error, trace):
        if kind is not None and not self.answered:
            with contextlib.suppress(_errors.Error):  # the exception that goes on says more
                self.error(_words(kind, error))
        self.release()

    def __getitem__(self, key):
        return self.message[key]

    def __len__(self):
        return len(self.message)

    def __iter__(self):
        return iter(self.message)

    def __array__(self, dtype=None, copy=None):
        return self.message.__array__(dtype, copy)

    def __dlpack__(self, **arguments):
        return self.message.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self.message.__dlpack_device__()

    def __reduce__(self):
        raise TypeError("a request belongs to its worker and cannot be copied or pickled")

    def __repr__(self):
        if self.released:
            return "<dlx.Request, released>"
        return f"<dlx.Request{', answered' if self.answered else ''}: {self.message!r}>"


def _lent(name):
    """An attribute of the message."""
    return property(
        lambda self: getattr(self.message, name), doc=getattr(_message.Message, name).__doc__
    )


add(CallerMethods, Caller)
add(ServiceMethods, Service)
add(RequestMethods, Request)
for _type in (Caller, Service):
    add(HandleMethods, _type)
for _name in ("meta", "names", "tensors", "topic"):
    setattr(Request, _name, _lent(_name))
