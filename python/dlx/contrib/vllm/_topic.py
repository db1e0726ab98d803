# SPDX-License-Identifier: Apache-2.0
"""What is on a topic: its first message, when several processes want it, and versions. Needs dlx
alone.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import dlx

if TYPE_CHECKING:
    from dlx._dlx import PublisherInfo

_AGAIN = 1.0  # seconds until a waiting process looks again whether the publishing one still lives

# Returns tensors and metadata to publish.
Read = Callable[[], tuple[Mapping[str, object], dict[str, object]]]


def _get(c: dlx.Connection, topic: str, timeout: float = 0) -> dlx.Message | None:
    try:
        return c.get(topic, timeout)
    except dlx.Timeout:
        return None


def get_or_publish(c: dlx.Connection, topic: str, read: Read | None, timeout: float) -> dlx.Message:
    """Returns the topic's newest message. If there is none, one of the processes that want it
    publishes what read() returns, as a retained message, and the others wait. `read` None: this
    process only waits. Raises dlx.Timeout, and what publish() raises.

    Each of them announces a publisher; the first, which has the lowest id, reads and publishes. If
    it dies, the next one is the first.
    """
    msg = _get(c, topic)
    if msg is not None:
        return msg
    deadline = time.monotonic() + timeout
    pub = c.publisher(topic, retain=1) if read else None
    try:
        while True:
            live = [p for p in c.publishers(topic) if not p["retained"]]
            first = min(live, key=lambda p: p["publisher"], default=None)
            is_mine = pub is not None and first is not None and first["publisher"] == pub.id
            # One that was the first may have published since the last look.
            wait = 0 if is_mine else max(0.0, min(_AGAIN, deadline - time.monotonic()))
            msg = _get(c, topic, wait)
            if msg is not None:
                return msg
            if pub is not None and read is not None and is_mine:
                _publish(pub, *read())
                return c.get(topic)
            if time.monotonic() >= deadline:
                raise dlx.Timeout(_nothing_came(topic, timeout, first))
    finally:
        if pub is not None:
            pub.close()


def _nothing_came(topic: str, timeout: float, first: "PublisherInfo | None") -> str:
    if first is None:
        return (
            f"topic {topic} has no message and no publisher after {timeout:g} s: publish the "
            "checkpoint there"
        )
    return (
        f'topic {topic}: "{first["client_name"]}" (process {first["pid"]}) has announced a '
        f"publisher and not published in {timeout:g} s: end it, or raise the timeout"
    )


def _publish(pub: dlx.Publisher, tensors: Mapping[str, object], meta: dict[str, object]) -> None:
    try:
        pub.publish(tensors, meta=meta)
    except (dlx.LimitError, dlx.NoMemory) as e:
        e.add_note(size_note(pub.topic, tensors))
        raise


def size_note(topic: str, tensors: Mapping[str, object]) -> str:
    """Says what did not fit into the user's shared memory."""
    size = sum(getattr(t, "nbytes", 0) for t in tensors.values())
    return (
        f"topic {topic}: {len(tensors)} tensors of {size} bytes were not published: raise the "
        "limit that is named above (`dlxctl quota` shows it)"
    )


# -- versions --------------------------------------------------------------------------------------


def version_of(c: dlx.Connection, topic: str, version: int | None, timeout: float) -> dlx.Message:
    """Returns a version, or the newest one, of those that a topic retains; waits for one that is
    newer than those. Raises ValueError (it is gone, or the topic has messages of another kind), and
    dlx.Timeout.
    """
    deadline = time.monotonic() + timeout
    seen: list[int] = []
    try:
        if version is None:
            msg = c.get(topic, timeout)
            _number(msg)
            return msg
        with c.subscribe(topic, stay=True) as s:  # begins with what is retained
            while True:
                msg = s.try_take() or s.take(_left(deadline, topic, version, seen))
                seen.append(_number(msg))
                if seen[-1] == version:
                    return msg
    except dlx.Timeout:
        has = f"versions up to {max(seen)}" if seen else "no message"
        wanted = "" if version is None else f", and not {version}"
        raise dlx.Timeout(
            f"topic {topic} has {has}{wanted} after {timeout:g} s: does its trainer run?"
        ) from None


def _left(deadline: float, topic: str, version: int, seen: list[int]) -> float:
    """Returns the seconds that are left for a version that has not been seen among those that the
    topic retains. Raises ValueError if it will not come.
    """
    if any(number > version for number in seen):
        raise ValueError(
            f"topic {topic} retains version {', '.join(map(str, sorted(seen)))}, and {version} is "
            "gone: swap to one of those, or let the trainer keep more `versions`"
        )
    return max(0.0, deadline - time.monotonic())


def last_version(c: dlx.Connection, topic: str) -> int:
    """Returns the number of the newest version that a topic retains, or 0."""
    msg = _get(c, topic)
    return 0 if msg is None else _number(msg)


def _number(msg: dlx.Message) -> int:
    version = msg.meta.get("version") if isinstance(msg.meta, dict) else None
    if not isinstance(version, int):
        raise ValueError(
            f"topic {msg.topic} has a message without a version in its metadata: give the trainer "
            "a topic of its own"
        )
    return version
