# SPDX-License-Identifier: Apache-2.0
"""publish_many() and take_many(), and how far a subscriber may be behind."""

import threading

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, alarm, blocking, is_in_use, until


def texts(messages):
    return [m[0].tobytes().decode() for m in messages]


def numbers(pub, n):
    """Tensors in shared memory, nothing of which is used any more."""
    tensors = [pub.empty(1, "uint8") for _ in range(n)]
    for i, x in enumerate(tensors):
        np.asarray(x)[:] = ord("0") + i
    return tensors


# -- publishing ------------------------------------------------------------------------------------


def test_a_batch_of_tensors_in_shared_memory_is_passed_in_order_without_a_copy(pair):
    pub, sub = pair
    tensors = numbers(pub, 5)
    report = pub.publish_many(tensors, strict=True)
    assert report == (5, False, 0, 0, 1) and all(x.published for x in tensors)
    messages = sub.take_many(10)
    assert texts(messages) == list("01234") and [m.seq for m in messages] == [1, 2, 3, 4, 5]
    assert pub.stats()["published"] == 5 and pub.stats()["copied"] == 0


def test_a_batch_may_mix_whatever_publish_takes(pair):
    pub, sub = pair
    pub.publish({"a": b"from", "b": b"before"}, meta={"k": 1})
    received = sub.take()
    x, y = numbers(pub, 2)
    report = pub.publish_many(
        iter(
            [
                x,
                b"bytes",
                {"u": y, "v": np.zeros(3, np.int16)},
                [b"p", b"q"],
                received,
                received["a"],
                b"end",
            ]
        )
    )
    assert report.seq == 8 and report.copied and report.n_copied == 8 and x.published
    assert y.published
    assert report.copied_bytes == 5 + 6 + 2 + 10 + 4 + 3
    messages = sub.take_many(9)
    assert [m.names for m in messages] == [
        [None],
        [None],
        ["u", "v"],
        [None] * 2,
        ["a", "b"],
        [None],
        [None],
    ]
    assert texts(messages) == ["0", "bytes", "1", "p", "from", "from", "end"]
    assert messages[4].meta == {"k": 1}


def test_the_rows_of_an_array_are_a_batch(pair):
    pub, sub = pair
    frames = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert pub.publish_many(frames).copied_bytes == 48
    assert np.array_equal(np.stack([np.asarray(m) for m in sub.take_many(3)]), frames)


def test_an_empty_batch_publishes_nothing(pair):
    pub, sub = pair
    assert pub.publish_many([]) == (0, False, 0, 0, 0)
    with pytest.raises(dlx.Timeout):
        sub.take(0)


def test_a_shared_batch_stays_with_its_publisher(pair):
    pub, sub = pair
    (x,) = numbers(pub, 1)
    assert not pub.publish_many([x, x, {"x": x}], share=True, strict=True).copied
    assert x.readonly and not x.published and texts(sub.take_many(9)) == ["0"] * 3
    assert not pub.publish(x, strict=True).copied and x.published


def test_a_batch_stamps_the_time_that_it_is_given(pair):
    pub, sub = pair
    pub.publish_many([b"a", b"b"], monotonic_ns=12345)
    assert [m.monotonic_ns for m in sub.take_many(2)] == [12345, 12345]


def test_a_large_batch_wraps_the_ring(c):
    with c.publisher("a", depth=8) as pub, c.subscribe("a") as sub:
        assert pub.publish_many(np.arange(10000, dtype=np.int64)[:, None]).seq == 10000
        messages = sub.take_many(5000)
        assert [int(np.asarray(m)[0]) for m in messages] == list(range(9992, 10000))
        assert messages[0].gap == 9992


def fails(pub, error, messages, n, **kwargs):
    with pytest.raises(error) as e:
        pub.publish_many(messages, **kwargs)
    assert e.value.n_published == n
    return e.value


def test_an_object_that_is_no_message_is_found_before_anything_is_published(pair):
    pub, sub = pair
    x, y = numbers(pub, 2)
    assert str(fails(pub, TypeError, [x, object()], 0)).startswith("messages[1]: no tensor")
    assert str(fails(pub, TypeError, [x, b"y", {"a": y, "b": object()}], 0)).startswith(
        "messages[2]: tensors['b']: no tensor"
    )
    assert str(fails(pub, dlx.InvalidError, [x, {}], 0)).startswith(
        "messages[1]: a message of 0 tensors"
    )
    for twice in ([x, y, x], [x, {"a": x}], [{"a": x, "b": x}]):
        assert "twice" in str(fails(pub, dlx.InvalidError, twice, 0))
    for bad in (7, None, object()):
        fails(pub, TypeError, bad, 0)
    assert "a list of messages, and a dict is one" in str(fails(pub, TypeError, {"a": x}, 0))
    fails(pub, TypeError, "text", 0)

    def ends_badly():
        yield x
        raise KeyError("mine")

    fails(pub, KeyError, ends_badly(), 0)
    view = np.asarray(y)
    assert str(fails(pub, dlx.WouldCopy, [x, y], 0, strict=True)).startswith(
        "messages[1]: topic cam/front: tensor 0 would"
    )
    del view
    assert pub.stats()["published"] == 0 and not x.published and not y.published
    assert not pub.publish_many([x, y], strict=True).copied
    assert texts(sub.take_many(2)) == ["0", "1"]
    with pytest.raises(ValueError, match="was published"):
        pub.publish_many([b"z", x])


def test_a_failure_on_the_way_tells_how_many_were_published_and_leaves_the_rest(pair):
    pub, sub = pair
    tensors = numbers(pub, 4)
    messages = [tensors[0], {"x": tensors[1]}, tensors[2], b"is not from here", tensors[3]]
    e = fails(pub, dlx.WouldCopy, messages, 3, strict=True)
    assert e.code < 0 and [x.published for x in tensors] == [True, True, True, False]
    assert texts(sub.take_many(9)) == ["0", "1", "2"] and pub.publish_many(messages[3:]).seq == 5
    assert texts(sub.take_many(9)) == ["is not from here", "3"]


def test_a_closed_publisher_publishes_no_batch(c):
    pub = c.publisher("a")
    x = pub.empty(1)
    pub.close()
    fails(pub, dlx.Closed, [x], 0)
    assert not x.published
    for bad in (
        lambda: pub.publish_many(),
        lambda: pub.publish_many([], 1),
        lambda: pub.publish_many([], meta={}),
    ):
        with pytest.raises(TypeError):
            bad()


# -- how far a subscriber may be behind ------------------------------------------------------------


def test_depth_is_how_far_a_subscriber_may_be_behind(c):
    with c.publisher("a", depth=3) as pub, c.subscribe("a") as sub:
        assert c.publishers("a")[0]["depth"] == 3
        pub.publish_many([b"0", b"1", b"2", b"3", b"4"])
        messages = sub.take_many(9)
        assert texts(messages) == ["2", "3", "4"] and messages[0].gap == 2
        assert sub.stats()["lost"] == 2


def test_a_batch_that_does_not_wait_is_published_as_far_as_there_is_room(c):
    with blocking(c, depth=4, timeout=0) as (pub, sub):
        tensors = numbers(pub, 6)
        e = fails(pub, dlx.Full, tensors, 4)
        assert "depth 4" in str(e) and [x.published for x in tensors] == [True] * 4 + [False] * 2
        assert texts(sub.take_many(9)) == list("0123")
        assert pub.publish_many(tensors[4:]).seq == 6 and texts(sub.take_many(9)) == ["4", "5"]
        assert pub.stats()["refused"] == 1


def test_a_batch_waits_once_for_all_its_messages(c):
    """The waits of its parts, of 0.2 s each, count as one."""
    with blocking(c, depth=2, timeout=0.5) as (pub, sub):
        e = fails(pub, dlx.Timeout, [b"0", b"1", b"2", b"3"], 2)
        assert "behind" in str(e)
        assert (pub.stats()["refused"], pub.stats()["blocked"]) == (1, 1)
        assert texts(sub.take_many(9)) == ["0", "1"]


def test_a_wait_that_is_over_before_it_begins_is_a_time_out(c):
    with blocking(c, depth=1) as (pub, sub):
        pub.publish(b"0")
        for publish in (pub.publish, lambda x, timeout: pub.publish_many([x], timeout=timeout)):
            with pytest.raises(dlx.Timeout, match="behind"):
                publish(b"1", timeout=1e-9)
        assert texts(sub.take_many(9)) == ["0"]


def test_a_batch_that_waits_is_published_whole_when_somebody_takes(c):
    with blocking(c) as (pub, sub):
        got = []

        def take():
            while len(got) < 100:
                got.extend(texts(sub.take_many(3)))

        thread = threading.Thread(target=take)
        thread.start()
        tensors = [b"%d" % i if i % 7 else {"a": b"%d" % i} for i in range(100)]
        assert pub.publish_many(tensors, timeout=PATIENCE).seq == 100
        thread.join()
        assert got == [str(i) for i in range(100)] and pub.stats()["refused"] == 0


def test_a_handler_that_raises_ends_a_batch_and_what_was_published_is_told(c):
    with blocking(c, depth=3) as (pub, sub):
        tensors = numbers(pub, 5)
        with alarm():
            fails(pub, ZeroDivisionError, tensors, 3)
        assert [x.published for x in tensors] == [True] * 3 + [False] * 2
        assert texts(sub.take_many(9)) == list("012")


# -- taking ----------------------------------------------------------------------------------------


def test_take_many_gives_what_is_there_and_waits_only_for_the_first(pair):
    pub, sub = pair
    with pytest.raises(dlx.Timeout, match="has no message"):
        sub.take_many(3, 0)
    with pytest.raises(dlx.Timeout, match="no message within 0.01 s"):
        sub.take_many(3, timeout=0.01)
    pub.publish_many([b"a", b"b", b"c"])
    assert texts(sub.take_many(2)) == ["a", "b"]
    only = sub.take_many(1)
    assert isinstance(only, list) and texts(only) == ["c"]
    threading.Thread(
        target=lambda: (until(lambda: is_in_use(sub), "waiting"), pub.publish(b"d"))
    ).start()
    assert texts(sub.take_many(2**32 - 1)) == ["d"]
    assert sub._poll(4) is None


@pytest.mark.parametrize(
    "bad, error",
    [
        ((0,), ValueError),
        ((-1,), ValueError),
        ((2**32,), ValueError),
        (("3",), TypeError),
        ((), TypeError),
        ((3, -1), ValueError),
        ((3, 0, 0), TypeError),
    ],
)
def test_numbers_of_messages_that_cannot_be_are_refused(pair, bad, error):
    for take in (pair[1].take_many, pair[1].take_many_async):
        with pytest.raises(error):
            take(*bad)


def test_take_many_stops_where_too_many_are_held(c):
    with c.publisher("a") as pub, c.subscribe("a", max_held=3) as sub:
        pub.publish_many([b"0", b"1", b"2", b"3", b"4"])
        held = sub.take_many(9)
        assert texts(held) == ["0", "1", "2"] and sub.stats()["n_held"] == 3
        with pytest.raises(dlx.TooManyHeld, match="3"):
            sub.take_many(9, 0)
        held.clear()
        assert texts(sub.take_many(9)) == ["3", "4"]


def test_take_many_of_the_latest_is_one_message(c):
    with c.publisher("a") as pub, c.subscribe("a", latest=True) as sub:
        pub.publish_many([b"0", b"1", b"2"])
        assert texts(sub.take_many(9)) == ["2"] and sub.stats()["skipped"] == 2


def test_messages_of_a_batch_are_held_one_by_one(pair):
    pub, sub = pair
    pub.publish_many([b"0", b"1", b"2"])
    messages = sub.take_many(3)
    kept = np.asarray(messages.pop(1))
    del messages
    assert sub.stats()["n_held"] == 1 and bytes(kept) == b"1"
    del kept
    assert sub.stats()["n_held"] == 0
