# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one for each group of codes of libdlx, with the library's words."""

__all__ = ["Error", "Timeout", "AccessError", "DaemonError", "NoMemory", "LimitError", "InvalidError", "NotFound",
           "PublisherGone", "Full", "TooManyHeld", "WouldCopy", "DeviceError", "Forked", "InUse", "Closed", "PeerError"]


class Error(Exception):
    """What libdlx says went wrong. `code` is its number (enum dlx_error, negative), `name` the name of that. `n_published`: how many
    messages publish_many() had published."""

    code = 0
    name = ""
    n_published = 0

    def __str__(self):  # KeyError and others would quote it
        return str(self.args[0]) if self.args else ""


class Timeout(Error, TimeoutError):
    """Nothing came, or nobody made room, in time."""


class AccessError(Error, PermissionError):
    """The daemon does not let this user do that."""


class DaemonError(Error, ConnectionError):
    """No dlpackd is there, or the connection to it was lost."""


class NoMemory(Error, MemoryError):
    """Out of (shared) memory."""


class LimitError(Error):
    """A limit: a quota, open files, mappings. The words name it."""


class InvalidError(Error, ValueError):
    """An argument that cannot be: a topic, a shape, a quality of service that the other side does not offer."""


class NotFound(Error, KeyError):
    """There is no such tensor, publisher or retained message."""


class PublisherGone(Error):
    """The last publisher left, and all that it published was taken; or memory of a GPU ended with its process."""


class Full(Error):
    """A reliable subscriber is as far behind as it may be, and publish() was not to wait; the words name it."""


class TooManyHeld(Error):
    """As many messages are held as the subscription may: release some, or ask for a greater max_held."""


class WouldCopy(Error, BufferError):
    """publish(strict=True) would have had to copy."""


class DeviceError(Error, BufferError):
    """A tensor in memory that cannot be had here: of another device, or of a GPU that this process does not see."""


class Forked(Error):
    """A handle or tensor of the parent process, used in a forked child: connect again there."""


class InUse(Error):
    """Another thread is using the handle."""


class Closed(Error, ValueError):
    """The handle was closed."""


class PeerError(Error):
    """A publisher wrote what cannot be into shared memory: it was cut off, others go on."""


_OF_NAME = {
    "TIMEOUT": Timeout, "EMPTY": Timeout, "ACCESS": AccessError, "NO_DAEMON": DaemonError,
    "DISCONNECTED": DaemonError, "PROTOCOL": DaemonError, "VERSION": DaemonError, "NO_MEMORY": NoMemory,
    "LIMIT": LimitError, "FD_LIMIT": LimitError, "INVALID": InvalidError, "TOPIC": InvalidError,
    "SHAPE": InvalidError, "QOS": InvalidError, "NOT_FOUND": NotFound, "PUBLISHER_GONE": PublisherGone,
    "FULL": Full, "TOO_MANY_HELD": TooManyHeld, "WOULD_COPY": WouldCopy, "DEVICE": DeviceError,
    "FORKED": Forked, "IN_USE": InUse, "BAD_PEER": PeerError,
}


def make(code, name, text):
    """The exception for a code; 0: a handle that was closed."""
    error = (_OF_NAME.get(name, Error) if code else Closed)(text)
    error.code, error.name = code, name if code else "CLOSED"
    return error


for _name in __all__:  # where users know them from
    globals()[_name].__module__ = "dlx"
