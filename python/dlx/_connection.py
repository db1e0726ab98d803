# SPDX-License-Identifier: Apache-2.0
"""Methods of dlx.Connection that translate their arguments for the extension."""
import os

from . import _errors
from ._dlx import Connection
from ._tensor import add


class _Unsaid(int):
    """A default that can be told from the same number when somebody gives it."""


_NOW = _Unsaid(0)


def _is_pattern(topic):
    try:
        return "*" in os.fsdecode(topic)
    except TypeError:  # the extension says what a topic is
        return False


class Methods:
    """Of a Connection."""

    def publisher(self, topic, *, history=0, on_full="drop", depth=16, retain=0, retain_for=None, timeout=None, max_held=0,
                  max_held_bytes=0, require=0):
        """Announce a dlx.Publisher on a topic: segments of [A-Za-z0-9_.-], separated by '/'.

        history     newest messages that stay readable for subscriptions that ask for a history, to 1024; 0: the
                    larger of 1 and `retain`
        on_full     "drop" a message that is `depth` behind the newest, or "block" until reliable subscribers
                    have taken it
        depth       how far a subscriber may be behind, in messages of any size, 1 to 4096
        retain      newest messages (at most `history`) that late subscribers and get() find, also when the
                    publisher has gone
        retain_for  seconds that they stay then, more than 0; None: without a limit; "latched": not at all
        timeout     seconds that publish() waits for subscribers, with on_full="block" or `require`; None: no limit
        max_held    messages that one subscriber may hold at once, to 4096; 0: as many as it asks for
        max_held_bytes  bytes that it may hold at once; 0: any number
        require     subscribers that must be attached: publish() waits for them, and raises dlx.Timeout if they do not
                    come in time; 0: a message may reach nobody, which Report.subscribers says

        Raises dlx.InvalidError, dlx.AccessError, dlx.LimitError, dlx.NoMemory, dlx.DaemonError."""
        if on_full not in ("drop", "block"):
            raise ValueError(f'on_full is "drop" or "block", not {on_full!r}')
        latched = isinstance(retain_for, str)
        if latched and retain_for != "latched":
            raise ValueError(f'retain_for is a number of seconds, None or "latched", not {retain_for!r}')
        return self._publisher(topic, history, on_full == "block", depth, retain, latched, None if latched else retain_for, timeout,
                               max_held, max_held_bytes, require)

    def subscribe(self, topic, *, latest=False, history=0, reliable=False, max_held=16, timeout=None, stay=None, publishers=None,
                  spin=None, pin=None, private=False):
        """A dlx.Subscription of a topic, or of all that match a pattern, now and later: '*' stands for any characters
        of its segment ("cam/*"), a last segment of "**" for one segment or more. It is attached to every
        publisher that is there when this returns.

        latest    only ever the newest message; what is passed over is counted
        history   begin with up to this many that were published before; None: not even with what is retained
        reliable  the publisher (on_full="block") waits for this subscription
        max_held  messages held at once at most, 1 to 4096
        timeout   seconds that take() and loops wait for a message (dlx.Timeout); None: no limit
        stay      True: loops and take() wait for the next publisher when the last one has left; False: loops end
                  there, and take() raises dlx.PublisherGone; None: True for a pattern, else False
        publishers  end when at least this many have left, instead of one: a loop over the results of N workers
                  that come and go when they like; not with `stay`
        spin      seconds of busy waiting at most before sleeping; "never" (or 0), "always"; None: adaptive
        pin       a GPU ("cuda:0") that copies by itself from what publishers have in memory of the CPU: keep a
                  tensor until a copy that was queued is done (docs/GPU.md); None: no GPU
        private   tensors may be written to, as those of msg.private(): what is written is seen by nobody else, not
                  even by another msg[key]. From 256 KiB on pages are copied when they are written to, a smaller
                  tensor at once; dlx.DeviceError for a tensor on a GPU

        Raises dlx.InvalidError (the topic; reliable, of a publisher that drops), dlx.AccessError, dlx.LimitError,
        dlx.DaemonError, dlx.DeviceError (pin: no such GPU), dlx.Timeout."""
        if stay is not None and publishers is not None:
            raise ValueError("stay and publishers exclude each other: a loop for a number of publishers ends when they have left")
        if publishers is None:
            stays = _is_pattern(topic) if stay is None else stay
            publishers = None if stays else 1
        if isinstance(spin, str):
            if spin not in ("never", "always"):
                raise ValueError(f'spin is a number of seconds, "never" or "always", not {spin!r}')
            busy = (0 if spin == "never" else None,)
        else:
            busy = () if spin is None else (spin,)
        return self._subscribe(topic, latest, history, reliable, max_held, timeout, publishers, pin, private, *busy)

    def get(self, topic, timeout=_NOW, *, stream=None):
        """The newest message of a topic, of all its publishers and of what is retained, whole or not at all. timeout:
        seconds to wait for the first one, None without a limit; 0, or left out: what is there now. stream: as take().
        Raises dlx.Timeout, and what subscribe() and take() raise."""
        try:
            return self._get(topic, timeout, stream)
        except _errors.Timeout as e:
            if timeout is not _NOW or e.name != "EMPTY":
                raise
            raise _errors.make(e.code, e.name, f"{e}; get(topic, timeout=None), or with seconds, waits for one") from None


add(Methods, Connection)
