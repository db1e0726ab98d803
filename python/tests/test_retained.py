# SPDX-License-Identifier: Apache-2.0
"""Retained messages, and get()."""

import pathlib
import re

import pytest
from conftest import PATIENCE, until


def test_a_retained_set_is_in_memory_once(c, peer):
    """Two processes have all of it in use; together they have one of it."""
    p = peer("""
        import numpy as np
        weights = {str(i): np.full(1 << 20, i, np.uint8) for i in range(8)}
        c.publisher("weights", retain=1).publish(weights)
    """)
    p.end()
    users = [
        peer(
            "w = c.get('weights', 60); say(sum(int(memoryview(t)[k]) for t in w.values() for k in "
            "range(0, 1 << 20, 4096))); hear()"
        )
        for _ in range(2)
    ]
    assert [user.hear() for user in users] == [str(sum(range(8)) * 256)] * 2
    used = {"Rss": [], "Pss": []}
    for user in users:
        maps = (
            pathlib.Path(f"/proc/{user.process.pid}/smaps")
            .read_text()
            .split("/memfd:dlx-arena")[1:]
        )
        for what, sums in used.items():
            sums.append(
                sum(int(re.search(rf"^{what}: *(\d+) kB", x, re.M)[1]) * 1024 for x in maps)
            )
    there = c.publishers("weights")[0]
    assert min(used["Rss"]) >= 8 << 20 and sum(used["Pss"]) <= there["arena_bytes"], used
    for user in users:
        user.say("go")
        user.end()


def test_retained_sets_outlive_their_publisher(c, peer):
    p = peer("""
        pub = c.publisher("weights/policy", retain=1)
        pub.publish({"w": b"1234", "b": b"5"}, meta={"step": 3})
        os.kill(os.getpid(), 9)
    """)
    p.end(status=-9)
    msg = c.get("weights/policy", timeout=PATIENCE)
    assert list(msg) == ["w", "b"] and msg["w"].tobytes() == b"1234" and msg.meta == {"step": 3}
    until(
        lambda: [x["retained"] for x in c.publishers("weights/*")] == [True], "that it is retained"
    )
    c.drop_retained("weights/policy")
    assert msg["b"].tobytes() == b"5"
    with pytest.raises(KeyError):
        c.drop_retained("weights/policy")
    with pytest.raises(TimeoutError, match="has no message"):
        c.get("weights/policy", timeout=0)
    with pytest.raises(TimeoutError, match="none came"):
        c.get("weights/policy", timeout=0.01)


def test_how_long_messages_are_retained(c):
    """0, which is without a limit to libdlx, is refused, and so is a time without an end."""
    with pytest.raises(ValueError, match='give "latched"'):
        c.publisher("a", retain=1, retain_for=0)
    for retain_for, stays in (
        ("latched", False),
        (0.001, False),
        (None, True),
        (float("inf"), True),
        (3600, True),
    ):
        with c.publisher("a", retain=1, retain_for=retain_for) as pub:
            pub.publish(b"x")
        if not stays:
            until(lambda: not c.publishers("a"), "that it is dropped")
            continue
        assert c.get("a", 0)[0].tobytes() == b"x"
        c.drop_retained("a")
    c.publisher("a", retain_for=float("inf")).close()


def test_get_waits_for_the_first_message(c, peer):
    p = peer('say(c.get("late", timeout=60)[0].tobytes().decode())')
    with c.publisher("late", history=1) as pub:
        pub.wait(1, PATIENCE)
        pub.publish(b"here")
        assert p.hear() == "here"
    p.end()
