# SPDX-License-Identifier: Apache-2.0
"""A long wait on a topic that nobody publishes warns that its name may be wrong."""

import asyncio
import threading
import time
import warnings

import dlx
import numpy as np
import pytest
from conftest import PATIENCE


def test_a_long_wait_for_a_topic_that_nobody_publishes_warns_once(c):
    """take(), and take_async() at the same time."""
    sync, other = c.subscribe("typo/sync"), c.subscribe("typo/async")
    hint_after, waited = sync._hint_after, []
    after = hint_after + 0.5

    def take():
        began = time.monotonic()
        with pytest.raises(dlx.Timeout):
            sync.take(timeout=after)
        waited.append(time.monotonic() - began)

    async def main():
        with pytest.raises(dlx.Timeout):
            await other.take_async(timeout=after)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=take)
        thread.start()
        asyncio.run(main())
        thread.join(PATIENCE)
    assert all(w.category is dlx.NoPublisherWarning for w in told)
    words = ": no message for 5 s, since nobody publishes it: `dlxctl ls` shows"
    assert sorted(str(w.message).partition(words)[:2] for w in told) == [
        ("topic typo/async", words),
        ("topic typo/sync", words),
    ]
    assert sync._hint_after is None and other._hint_after is None
    assert waited[0] < 2 * hint_after  # what it waited before it warned counts


def test_a_program_that_raises_warnings_loses_no_message_by_this_one(c):
    with c.subscribe("late") as sub, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(dlx.NoPublisherWarning, match="topic late: .*stay=True"):
            sub.take()
        with c.publisher("late") as pub:
            pub.publish(np.arange(3))
            assert np.asarray(sub.take()).tolist() == [0, 1, 2]


def test_no_warning_is_due_for_those_who_wait_on_purpose_or_have_had_a_message(c):
    assert c.subscribe("a", stay=True)._hint_after is None
    assert c.subscribe("a/*")._hint_after is None
    assert c.subscribe("a/*", publishers=2)._hint_after is not None
    with c.subscribe("a") as sub, c.publisher("a") as pub:
        pub.wait(1, PATIENCE)
        assert sub.try_take() is None
        sub._hint()  # there is a publisher
        assert sub._hint_after is not None
        pub.publish(np.ones(3))
        sub.take()
        assert sub._hint_after is None
