# SPDX-License-Identifier: Apache-2.0
"""connect(), and the methods of a Connection that translate their arguments for the extension."""

import os

from . import _dlx, _errors, _torch
from ._dlx import Connection
from ._tensor import add


def _is_pattern(topic):
    try:
        return "*" in os.fsdecode(topic)
    except TypeError:  # the extension says what a topic is
        return False


def connect(socket=None, *, name=None, timeout=None, autospawn=True):
    """Connects to dlpackd. If no socket is given and no daemon answers, starts a private daemon for
    this user, which ends after 10 seconds without a connection.

    socket     path of the daemon's socket; None: $DLX_SOCKET, else the default paths. With a path,
               or with $DLX_SOCKET, no daemon is started
    name       name of this program in `dlxctl ls`, at most 63 bytes
    timeout    limit in seconds of this and every later request, more than 0; None: 5. With a
               time, this call also waits that long for a daemon to come, unless it starts one
    autospawn  False: never start a daemon (as DLX_AUTOSPAWN=no)

    Ctrl-C interrupts the call. Raises dlx.DaemonError (no daemon, none in time, or none could be
    started), dlx.Timeout (no answer), dlx.AccessError, dlx.LimitError.
    """
    try:
        return _dlx._connect(socket, name, timeout, autospawn)
    except _errors.DaemonError as e:
        if socket and os.fsdecode(socket)[:1] not in ("/", "."):
            e.add_note(
                "connect() takes the path of a daemon's socket, or nothing: topics are named in "
                "publisher(), subscribe() and get()"
            )
        raise


def _busy(spin):
    """Returns the argument for a busy wait, where one was given: 0 for never, None for always."""
    if not isinstance(spin, str):
        return () if spin is None else (spin,)
    if spin not in ("never", "always"):
        raise ValueError(f'spin is a number of seconds, "never" or "always", not {spin!r}')
    return (0 if spin == "never" else None,)


def _some(name, number):
    """Returns the number; 0, which libdlx takes for its default, for None."""
    if number == 0:
        raise ValueError(f"{name} is 1 or more, or None for the default")
    return 0 if number is None else number


class Methods:
    """Methods of a Connection."""

    def publisher(
        self,
        topic,
        *,
        history=0,
        on_full=None,
        depth=None,
        retain=0,
        retain_for=None,
        timeout=None,
        max_held=0,
        max_held_bytes=0,
        require=0,
        groups=(),
    ):
        """Announces a dlx.Publisher on a topic: segments of [A-Za-z0-9_.-], separated by '/'.

        history     how many of the newest messages stay readable for subscriptions that ask for a
                    history, at most 1024; 0: the larger of 1 and `retain`
        on_full     "drop" a message that is `depth` behind the newest, or "block" until reliable
                    subscribers have taken it, and groups have done it; None: "block" with
                    `groups`, else "drop"
        depth       how many messages a subscriber, or a group, may be behind, 1 to 4096, whatever
                    their size; None: 64 with `groups`, else 16
        retain      how many of the newest messages (at most `history`) later subscriptions and
                    get() receive, also when the publisher is gone
        retain_for  seconds that the daemon keeps them then, more than 0; None: without a limit;
                    "latched": not at all
        timeout     seconds that publish() waits for subscribers, with on_full="block" or `require`;
                    None: without a limit
        max_held    how many messages one subscriber may hold at once, at most 4096; 0: as many as
                    it asks for
        max_held_bytes  how many bytes it may hold at once; 0: without a limit
        require     how many subscribers, of any kind, must be attached: publish() waits for them,
                    and raises dlx.Timeout if they are not in time; 0: a message may reach nobody,
                    and Report.subscribers is 0
        groups      names of groups of workers (subscribe(group=)), of which each does each message
                    once: messages are kept for them until they are done, also while there is no
                    worker, and when the publisher is gone. At most 16. Groups that are not listed
                    exist while they have a worker

        Raises dlx.InvalidError, dlx.AccessError, dlx.LimitError, dlx.NoMemory, dlx.DaemonError.
        """
        if on_full not in (None, "drop", "block"):
            raise ValueError(f'on_full is "drop", "block" or None, not {on_full!r}')
        if isinstance(groups, (str, bytes)):  # a tuple of its letters
            raise TypeError(f"groups is a list of names, not {groups!r}")
        groups = tuple(groups)
        latched = isinstance(retain_for, str)
        if latched and retain_for != "latched":
            raise ValueError(
                f'retain_for is a number of seconds, None or "latched", not {retain_for!r}'
            )
        return self._publisher(
            topic,
            history,
            on_full == "block" or (on_full is None and bool(groups)),
            0 if depth is None else depth,
            retain,
            latched,
            None if latched else retain_for,
            timeout,
            max_held,
            max_held_bytes,
            require,
            groups,
        )

    def subscribe(
        self,
        topic,
        *,
        latest=False,
        history=0,
        reliable=False,
        accepts_unreliable=False,
        max_held=None,
        timeout=None,
        stay=None,
        publishers=None,
        spin=None,
        pin=None,
        stream_timeout=None,
        kernels_loaded=False,
        private=False,
        device=None,
        group=None,
        lease=None,
        max_attempts=None,
        dead_letters=None,
    ):
        """Makes a dlx.Subscription of a topic, or of all topics that match a pattern, now and
        later: '*' stands for any characters in its segment ("cam/*"), and "**" as the last segment
        for one or more segments. When this returns, it is attached to every publisher that is
        there.

        latest    take only the newest message; messages that it passes over count as skipped
        history   begin with up to this many earlier messages, at most the publisher's own
                  `history`; 0: only with those that it retains; None: with none, not even retained
                  ones
        reliable  the publisher (on_full="block") waits for this subscription while it is attached
        accepts_unreliable  with `reliable`: take also from publishers that drop, of which messages
                  may be lost; msg.qos.reliable says which do not
        max_held  how many messages may be held at once, 1 to 4096; None: 16. With `group`, how
                  many of all publishers may be neither done nor given back; None: 1
        timeout   seconds that take() and loops wait for a message (dlx.Timeout); None: without a
                  limit
        stay      True: loops and take() wait for the next publisher when the last one has left;
                  False: loops end there, and take() raises dlx.PublisherGone; None: True for a
                  pattern, else False
        publishers  end when at least this many have left, instead of one, and be ready for so
                    many that come, publish and leave while this program does something else: for
                    the results of N workers; not with `stay`. Without a number the subscription
                    is ready for 2 (8 for a pattern), and for more, up to 64, once so many came;
                    the messages of others count as lost, with an "unseen" event. Each costs 4 KiB
        spin      longest busy wait in seconds before sleeping; "never" (or 0), "always"; None:
                  adaptive
        pin       a GPU ("cuda:0") that copies by itself from CPU memory of publishers. A tensor
                  is given back when all work on this GPU is done that was queued before, or only
                  that of the streams of t.used_on() (docs/GPU.md); None: no GPU
        stream_timeout  seconds that a stream of take(stream=) or __dlpack__ waits until a publisher
                  has written a tensor on a GPU; then it continues without, and `status`, `gpu_late`
                  and a "late" event say so. float("inf"): without a limit; None: 5 s for
                  publishers of other users, without a limit for those of this user
        kernels_loaded  True: while a stream waits, this program launches no CUDA kernel for the
                  first time. Then streams wait also where CUDA loads kernels with their first
                  launch, as it does unless CUDA_MODULE_LOADING=EAGER is set; False: the CPU waits
                  there, which `gpu_waits` counts and a "cpu_waited" event tells
        private   tensors are writable, like those of msg.private(): no other object sees what is
                  written, not even another msg[key]. From 256 KiB on, a page is copied when it is
                  written to; a smaller tensor is copied at once. A tensor on a GPU raises
                  dlx.DeviceError
        device    a GPU ("cuda:1") that uses received tensors on GPUs: those on other GPUs of its
                  kind are mapped for it. A tensor of a GPU to which it has no peer access raises
                  dlx.DeviceError. None: a tensor is for the GPU that it lies on
        group     be a worker: the subscriptions with this name share the messages of each
                  publisher, and each message goes to one of them, which says that it is done:
                  "with task:" does so at its end, and an exception gives the message back. A
                  message is done at least once: task.attempt counts its deliveries
        lease     seconds after which a worker that has neither done nor renewed (task.renew()) a
                  message loses it to another one; None: it keeps it while its process lives
        max_attempts  how often a message is delivered before it is a dead letter, which nobody
                  gets any more, 1 to 60; None: 5. This and `lease` are the same for all workers
                  of a group
        dead_letters  a topic on which this worker publishes a copy of each dead letter that it
                  finds; None: a "dead_letter" event alone

        Raises dlx.InvalidError (the topic; `reliable` alone, and a publisher drops; another `lease`
        or `max_attempts` than the group's), dlx.AccessError (also: the group is another user's),
        dlx.LimitError, dlx.DaemonError, dlx.DeviceError (pin, device: no such GPU), dlx.Timeout.
        """
        if stay is not None and publishers is not None:
            raise ValueError(
                "stay and publishers exclude each other: a loop for a number of publishers ends "
                "when they have left"
            )
        if group is None and (lease, max_attempts, dead_letters) != (None, None, None):
            raise ValueError(
                "lease, max_attempts and dead_letters are for a worker: give its group"
            )
        if isinstance(stay, (str, bytes)):  # "no" is true to Python
            raise TypeError(f"stay is True, False or None, not {stay!r}")
        if publishers is None:
            stays = _is_pattern(topic) if stay is None else stay
            publishers = None if stays else 1
        _torch.register()
        return self._subscribe(
            topic,
            latest,
            history,
            reliable,
            0 if max_held is None else max_held,
            timeout,
            publishers,
            pin,
            stream_timeout,
            kernels_loaded,
            private,
            device,
            group,
            lease,
            max_attempts,
            dead_letters,
            accepts_unreliable,
            *_busy(spin),
        )

    def caller(self, topic, *, max_in_flight=None, spin=None):
        """Makes a dlx.Caller, which asks the service on a topic. The service need not exist yet.

        max_in_flight  how many calls may be in flight, 1 to 1024; None: 16
        spin           longest busy wait for a reply, as for subscribe()

        A worker of another user needs the rights to subscribe and to block on the topic, and this
        program that to publish there. Replies need no rule.

        Raises dlx.InvalidError, dlx.AccessError, dlx.LimitError, dlx.DaemonError (also: the daemon
        is too old for calls).
        """
        _torch.register()
        return self._caller(topic, _some("max_in_flight", max_in_flight), *_busy(spin))

    def serve(self, topic, *, max_held=None, timeout=None, spin=None):
        """Begins to serve a topic, or all topics that match a pattern, as one of the workers of a
        service, and returns a dlx.Service. Each request goes to one worker:

            for request in c.serve("svc/detect"):
                with request:  # an exception is answered as dlx.CallError, and goes on
                    request.reply(model(request.message))

        max_held  how many requests this worker may have at once, 1 to 4096; None: 1
        timeout   seconds that take() and loops wait for a request (dlx.Timeout); None: without a
                  limit
        spin      longest busy wait for a request, as for subscribe()

        Raises as subscribe() does for a worker of a group: the group is "service".
        """
        _torch.register()
        return self._serve(topic, _some("max_held", max_held), timeout, *_busy(spin))

    def observe(self, topic, *, kinds=None):
        """Makes a dlx.Observer of a topic, or of all topics that match a pattern, which tells the
        publishers and subscriptions that are there, then kind="all", and then what changes:

            for change in c.observe("cam/**"):
                print(change.kind, change.topic, "gone" if change.gone else "there")

        kinds  "publishers" or "subscriptions"; None: both

        An observer receives no message, and no publisher takes it for a subscriber. It is told what
        publishers() lists.

        Raises dlx.InvalidError, dlx.AccessError, dlx.LimitError (an observer counts as a
        subscription), dlx.DaemonError (also: the daemon is too old), dlx.Timeout.
        """
        numbers = {None: 0, "publishers": 1, "subscriptions": 2}
        if kinds not in numbers:
            raise ValueError(f'kinds is "publishers", "subscriptions" or None, not {kinds!r}')
        return self._observe(topic, numbers[kinds])

    def get(self, topic, timeout=0, *, stream=None):
        """Returns the newest complete message of a topic, from any live publisher or from retained
        messages.

        timeout  seconds to wait for the first message; None: without a limit; 0, or left out: do
                 not wait
        stream   as for take()

        Raises dlx.Timeout, and what subscribe() and take() raise.
        """
        _torch.register()
        try:
            return self._get(topic, timeout, stream)
        except _errors.Timeout as e:
            if e.name != "EMPTY":
                raise
            raise _errors.make(
                e.code, e.name, f"{e}; get(topic, timeout=None), or with seconds, waits for one"
            ) from None


add(Methods, Connection)
connect.__module__ = "dlx"
_dlx.connect = connect  # where the rest of the package is
