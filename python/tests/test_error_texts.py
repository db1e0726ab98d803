# SPDX-License-Identifier: Apache-2.0
"""What exceptions say: in Python's names, and with what to do."""

import asyncio
import os
import re
import signal

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, until

DATA = np.arange(6, dtype=np.float32)


def struct():
    return np.zeros(3, dtype=[("a", "i4")])


PUBLISH = [
    (lambda p: p.publish(DATA, {"k": 1}), TypeError, "metadata is named, publish(x, meta={...})"),
    (
        lambda p: p.publish(DATA, meta={"k": DATA}),
        TypeError,
        "is an array, of type ndarray: publish it as a tensor of the message, or as a list "
        "(tolist())",
    ),
    (lambda p: p.publish(DATA, meta={"k": object()}), TypeError, "is of type object"),
    (
        lambda p: p.publish(DATA, meta="k"),
        TypeError,
        'metadata is a dict or bytes, not str: meta={"key": value}',
    ),
    (
        lambda p: p.publish(np.array(["2020-01-01"], "datetime64[s]")),
        BufferError,
        'publish its number, x.astype("int64"), and say its unit in meta',
    ),
    (
        lambda p: p.publish(np.timedelta64(3, "s")),
        BufferError,
        'publish its number, x.astype("int64")',
    ),
    (
        lambda p: p.publish(np.array(["abc"])),
        BufferError,
        "put text into meta, or publish its bytes as uint8",
    ),
    (
        lambda p: p.publish(np.array([object()])),
        BufferError,
        'Python objects to numbers, x.astype("float32")',
    ),
    (lambda p: p.publish(struct()), BufferError, "publish its fields as named tensors"),
    (lambda p: p.publish(np.zeros(3, ">f4")), BufferError, 'x.astype(x.dtype.newbyteorder("="))'),
    (lambda p: p.publish(3.0), TypeError, "convert it, by numpy.asarray() for example"),
    (
        lambda p: p.publish(DATA, strict=True),
        dlx.WouldCopy,
        "is not the dlx.Tensor that empty() of this publisher returned, but perhaps an array made "
        "of it, so it would be copied, "
        "which strict=True forbids",
    ),
    (
        lambda p: p.publish(DATA, timeout="1"),
        TypeError,
        "a time is a number of seconds, such as 0.5",
    ),
    (lambda p: p.publish(DATA, tmeout=1), TypeError, "'tmeout': it has tensors, meta, timeout, "),
    (
        lambda p: p.publish({"step": 3}),
        dlx.InvalidError,
        "a message of 0 tensors (limit 65535): publish at least one, and scalars alone as its meta",
    ),
    (lambda p: p.empty_like({}), dlx.InvalidError, "a message of 0 tensors (limit 65535)"),
    (
        lambda p: p.publish({"x": DATA, "text": "x" * 70000}),
        dlx.InvalidError,
        "topic cam/front: 70024 bytes of metadata and scalars (limit 65536): publish what is large "
        "as a tensor",
    ),
]


@pytest.mark.parametrize("call, error, words", PUBLISH)
def test_publish_says_what_it_wants(pair, call, error, words):
    with pytest.raises(error, match=re.escape(words)):
        call(pair[0])


CONNECTION = [
    (
        lambda c: c.publisher(["cam"]),
        TypeError,
        "a topic is a str such as \"cam/front\", not ['cam']",
    ),
    (lambda c: c.subscribe(3), TypeError, 'a topic is a str such as "cam/front", not 3'),
    (lambda c: c.get(("a",), timeout=0), TypeError, "a topic is a str"),
    (
        lambda c: c.publisher("a", retain=2000),
        dlx.InvalidError,
        "publisher on a: retain 2000, at most 1024 is possible",
    ),
    (
        lambda c: c.publisher("a", retain_for=5),
        dlx.InvalidError,
        "publisher on a: retain_for without messages to retain: set retain",
    ),
    (
        lambda c: c.publisher("a", retain=1, retain_for=-1),
        ValueError,
        "a time is a number of seconds >= 0",
    ),
    (lambda c: c.subscribe("a", spin=-1), ValueError, "a time is a number of seconds >= 0"),
    (
        lambda c: c.subscribe("a", latest=True, reliable=True),
        dlx.InvalidError,
        "latest=True passes messages over",
    ),
    (
        lambda c: c.publisher("a", require=1, timeout=0).publish(DATA),
        dlx.Timeout,
        "since require is 1",
    ),
    (lambda c: c.subscribe("a", latest="no"), TypeError, "True or False is wanted, not 'no'"),
    (lambda c: c.subscribe("a", reliable="yes"), TypeError, "True or False is wanted, not 'yes'"),
    (lambda c: dlx.connect(autospawn="no"), TypeError, "True or False is wanted, not 'no'"),
    (
        lambda c: c.publisher("a").publish(DATA, strict="no"),
        TypeError,
        "True or False is wanted, not 'no'",
    ),
    (lambda c: c.publisher("a", depth="3"), TypeError, "depth is a whole number, not '3'"),
    (
        lambda c: c.get("nobody", timeout=0),
        dlx.Timeout,
        "topic nobody has no message: nobody publishes it at ",
    ),
    (lambda c: c.get("nobody", timeout=0.01), dlx.Timeout, "nobody publishes it"),
    (
        lambda c: c.get("nobody"),
        dlx.Timeout,
        "; get(topic, timeout=None), or with seconds, waits for one",
    ),
    (
        lambda c: c.get("cam/front"),
        dlx.Timeout,
        "topic cam/front has no message; get(topic, timeout=None), or with seconds, waits for one",
    ),
    (
        lambda c: c.get("nobody", timeout="1"),
        TypeError,
        "a number of seconds, such as 0.5, or None for no limit: not '1'",
    ),
    (
        lambda c: c.subscribe("nobody").take(timeout=0.01),
        dlx.Timeout,
        "topic nobody: no message within 0.01 s, since nobody publishes it",
    ),
    (
        lambda c: c.subscribe("nobody").take(timeout=0),
        dlx.Timeout,
        "topic nobody has no message, since nobody publishes it",
    ),
    (
        lambda c: c.subscribe("cam/front", reliable=True),
        dlx.InvalidError,
        'make it a publisher that blocks (on_full="block"), or subscribe without reliable=True',
    ),
]


@pytest.mark.parametrize("call, error, words", CONNECTION)
def test_a_connection_says_what_it_wants(pair, c, call, error, words):
    with pytest.raises(error, match=re.escape(words)) as e:
        call(c)
    assert "dlx_" not in str(e.value)


def test_who_waits_for_a_publisher_that_is_there_hears_of_none_missing(pair):
    with pytest.raises(dlx.Timeout) as e:
        pair[1].take(timeout=0.01)
    assert str(e.value) == "topic cam/front: no message within 0.01 s"


def test_a_wait_in_vain_says_that_there_is_no_daemon(daemon, c):
    with c.subscribe("nobody") as sub:
        assert sub.stats()["has_daemon"] is True
        daemon.kill()
        daemon.wait()
        with pytest.raises(dlx.DaemonError, match="no publisher is attached and dlpackd is gone"):
            sub.take(timeout=PATIENCE)
        assert sub.stats()["has_daemon"] is False
        with pytest.raises(
            dlx.Timeout, match="^topic nobody: no message within 0.01 s, since no dlpackd is at /.*"
        ):
            sub.take(timeout=0.01)
        with pytest.raises(
            dlx.Timeout, match="^topic nobody has no message, since no dlpackd is at /.*"
        ):
            sub.take(timeout=0)
        with pytest.raises(
            dlx.Timeout, match="^topic nobody: no message within 0.01 s, since no dlpackd is at /.*"
        ):
            asyncio.run(sub.take_async(timeout=0.01))
        with pytest.raises(
            dlx.DaemonError,
            match=re.escape(
                f"is lost, and no daemon took its place: run dlpackd "
                f"--socket={os.environ['DLX_SOCKET']}"
            ),
        ):
            c.subscribe("nobody")


VAIN = {
    "take": lambda s: s.take(timeout=0.01),
    "take(0)": lambda s: s.take(timeout=0),
    "take_many(0)": lambda s: s.take_many(3, timeout=0),
    "take_async": lambda s: asyncio.run(s.take_async(timeout=0.01)),
}


@pytest.mark.parametrize("way", VAIN)
def test_a_take_in_vain_names_the_publisher_that_was_refused(c, way):
    with c.subscribe("drops", reliable=True) as sub, c.publisher("drops"):
        with pytest.raises(dlx.InvalidError, match="drops its oldest messages"):
            sub.take(timeout=PATIENCE)
        with pytest.raises(
            dlx.Timeout, match="^topic drops.* no message.*, since a publisher was refused: "
        ):
            VAIN[way](sub)


def test_a_connection_to_a_private_daemon_says_what_starts_the_next_one(
    folders, nobody_else, monkeypatch
):
    monkeypatch.setenv("DLX_AUTOSPAWN", "yes")
    monkeypatch.setenv("DLX_IDLE_EXIT", "0.25")
    with dlx.connect() as c:
        pid = c.daemon()["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: not os.path.exists(f"/proc/{pid}"))
        with pytest.raises(
            dlx.DaemonError, match=re.escape("took its place: dlx.connect() may start one")
        ):
            c.subscribe("a")
        with dlx.connect() as other:
            new = other.daemon()["pid"]
            assert c.daemon()["pid"] == new != pid
    until(lambda: not os.path.exists(f"/proc/{new}"))


def test_who_may_start_no_daemon_hears_why_in_words_of_python(folders, nobody_else):
    with pytest.raises(dlx.DaemonError, match="none is started: autospawn=False"):
        dlx.connect(autospawn=False)


def test_get_without_a_timeout_gives_what_is_there_and_with_none_waits(pair, c, peer):
    pub, _ = pair
    pub.publish(DATA)
    assert np.array_equal(np.asarray(c.get("cam/front")), DATA)
    waiter = peer("say('waits'); say(c.get('cam/late', timeout=None).topic)")
    assert waiter.hear() == "waits"
    with pytest.raises(dlx.Timeout, match="nobody publishes it at .*; .*waits for one$"):
        c.get("cam/late", timeout=0)
    with c.publisher("cam/late") as late:
        late.wait(1)
        late.publish(DATA)
        assert waiter.hear() == "cam/late"
    waiter.end()


def test_a_name_that_is_not_there_is_answered_with_those_that_are(pair):
    pub, sub = pair
    pub.publish({"rgb": DATA, "depth": DATA})
    with pytest.raises(KeyError, match='has no tensor "detph": it has "rgb", "depth"'):
        sub.take()["detph"]


@pytest.mark.parametrize("topic", ["cam", "cam/front"])
def test_a_topic_where_a_socket_is_wanted_is_pointed_out(daemon, topic):
    with pytest.raises(dlx.DaemonError) as e:
        dlx.connect(topic, autospawn=False)
    assert "topics are named in publisher()" in e.value.__notes__[0]
    with pytest.raises(dlx.DaemonError) as e:
        dlx.connect("./no/such.sock", autospawn=False)
    assert not hasattr(e.value, "__notes__")
