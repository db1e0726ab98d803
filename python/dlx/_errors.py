# SPDX-License-Identifier: Apache-2.0
"""Exceptions, one for each group of error codes of libdlx, with the text of the library."""

import re

_OF_CODE: dict = {}  # the class for the name of a code, without DLX_E_


def _public(*codes):
    """Makes a class one of the module that users import: the exception for these codes."""

    def add(cls):
        cls.__module__ = "dlx"
        _OF_CODE.update(dict.fromkeys(codes, cls))
        return cls

    return add


@_public()
class Error(Exception):
    """A failure of dlx, and the base of its exceptions.

    `code` is the number of enum dlx_error, negative, and `name` its name. `n_published` is the
    number of messages that publish_many() had published.
    """

    code = 0
    name = ""
    n_published = 0

    def __str__(self):  # KeyError and others would quote it
        return str(self.args[0]) if self.args else ""


@_public("TIMEOUT", "EMPTY")
class Timeout(Error, TimeoutError):
    """In time, no message came, no subscriber made room, or too few were attached."""


@_public("ACCESS")
class AccessError(Error, PermissionError):
    """The daemon or its rules do not permit this."""


@_public("NO_DAEMON", "DISCONNECTED", "PROTOCOL", "VERSION")
class DaemonError(Error, ConnectionError):
    """There is no dlpackd, or the connection to it was lost."""


@_public("KICKED")
class Kicked(Error, ConnectionError):
    """An operator has disconnected this program (dlxctl kick); the text names who. Nothing connects
    again by itself: dlx.connect() does.
    """


@_public("NO_MEMORY")
class NoMemory(Error, MemoryError):
    """There is not enough memory; the text has the bytes."""


@_public("LIMIT", "FD_LIMIT")
class LimitError(Error):
    """A limit was met, such as a quota, open files or mappings; the text names it."""


@_public("INVALID", "TOPIC", "SHAPE", "QOS")
class InvalidError(Error, ValueError):
    """An argument is not valid: a topic, a shape, or a quality of service that the publisher does
    not offer.
    """


@_public("NOT_FOUND")
class NotFound(Error, KeyError):
    """There is no such tensor, publisher, group or retained message; or the message is not this
    worker's any more.
    """


@_public("PUBLISHER_GONE")
class PublisherGone(Error):
    """The last publisher has left and everything it published was taken; or GPU memory ended with
    its process.
    """


@_public("FULL")
class Full(Error):
    """A reliable subscriber or a group is `depth` messages behind and publish() does not wait; the
    text names it. Or max_in_flight calls of a caller are in flight, or one of them is too old.
    """


@_public("WORKER_GONE")
class WorkerGone(Error):
    """The worker that had the request died; the text names it. The request may have been carried
    out in part.
    """


@_public("CALL_FAILED")
class CallError(Error):
    """The worker answered with an error, or let the request go without a reply. `worker_code` is
    the code that it gave, or 0.
    """

    worker_code = 0


@_public("TOO_MANY_HELD")
class TooManyHeld(Error):
    """The subscription holds max_held messages: release some, or subscribe with a larger one."""


@_public("WOULD_COPY")
class WouldCopy(Error, BufferError):
    """publish(strict=True) would have to copy the tensor."""


@_public("DEVICE")
class DeviceError(Error, BufferError):
    """The memory of a tensor cannot be used here: another device, or a GPU that this process does
    not see.
    """


@_public("FORKED")
class Forked(Error):
    """A forked child used a handle or tensor of its parent: connect again in the child."""


@_public("IN_USE")
class InUse(Error):
    """Another thread is in a call on the handle."""


@_public()
class Closed(Error, ValueError):
    """The handle was closed."""


@_public("BAD_PEER")
class PeerError(Error):
    """A publisher wrote invalid values into shared memory: its link is cut, the others go on."""


@_public()
class CopyWarning(RuntimeWarning):
    """A tensor of empty() was copied, since something made of it is still there."""


@_public()
class NoPublisherWarning(RuntimeWarning):
    """A take() has waited for seconds on a topic that nobody publishes: its name may be wrong."""


# Names of functions and arguments in libdlx, and their names here. Of two that begin alike, the
# longer one is first.
_NAMES = {
    "the time of dlx_connect_args": "the timeout of dlx.connect()",
    "dlx_connect()": "dlx.connect()",
    "is not from dlx_alloc() of this publisher": "is not the dlx.Tensor that empty() of this "
    "publisher returned, but perhaps an array made of it",
    "dlx_alloc()": "empty()",
    "dlx_message_tensor()": "a message",
    "dlx_tensor_used_on": "used_on",
    "DLManagedTensorVersioned": "a capsule of DLPack 1.0",
    "`strict`": "strict=True",
    "`share`": "share=True",
    "`stage`": "stage=True",
    "min_subscribers is": "require is",
    " (it did not wait: timeout_ns is 0)": "",  # publish_async() does, between its tries
    "retain_for_ns": "retain_for",
    "dlx_message_done()": "done()",
    "dlx_message_done": "done()",
    "dlx_message_give_back": "give_back()",
    "dlx_message_renew": "renew()",
    "dlx_publisher_drain()": "drain()",
    "lease_ns": "lease",
    "mode LATEST passes": "latest=True passes",
    "this program only connects": "autospawn=False",
    "`reliable`": "reliable=True",
    "metadata (limit DLX_META_MAX,": "metadata and scalars (limit",
    "on_full)": 'on_full="block")',
}
_ANY_NAME = re.compile("|".join(map(re.escape, _NAMES)))


def make(code, name, text):
    """Returns the exception for a code; code 0 is a handle that was closed."""
    text = _ANY_NAME.sub(lambda found: _NAMES[found[0]], text)
    error = (_OF_CODE.get(name, Error) if code else Closed)(text)
    error.code, error.name = code, name if code else "CLOSED"
    return error


def _name_place(error, place):
    """Prefixes the text of an exception with the place it is about. An exception of another class
    gets a note.
    """
    is_plain = type(error) in (TypeError, ValueError, BufferError) or isinstance(error, Error)
    if is_plain and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{place}: {error.args[0]}",)
    else:
        error.add_note(f"at {place}")


def name_item(error, what, key):
    """Prefixes the text with an item, as "tensors['rgb']"."""
    _name_place(error, f"{what}[{key!r}]")


def name_leaf(error, tree, name):
    """Prefixes the text with the place of a tensor in a nested set."""
    from . import _tree  # which needs this module

    _name_place(error, _tree.place(tree, name))


def count(error, n):
    """Says how many messages publish_many() published before the error."""
    error.n_published = n


def of_worker(error, code):
    """Says which code the worker gave."""
    error.worker_code = code


def refusal(error, object):
    """Returns a BufferError for a ValueError or RuntimeError by which another library refuses
    `object`, with the first line of its text: C++ adds where it was thrown.
    """
    if isinstance(error, BufferError) or not isinstance(error, (ValueError, RuntimeError)):
        return None
    lines = str(error).splitlines()
    return BufferError(f"{type(object)!r}: {lines[0]}" if lines else f"{type(object)!r} refuses it")


def no_memory(error, object):
    """Returns a BufferError that says what to publish instead of a tensor without memory, whatever
    the words of its library are; None if it is no such tensor.
    """
    from . import _torch  # which needs the extension

    if not isinstance(error, (BufferError, ValueError, RuntimeError)):
        return None
    reason = _torch.no_memory(object)
    return reason and BufferError(f"{type(object)!r} has no memory of its own: {reason}")
