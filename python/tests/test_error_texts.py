# SPDX-License-Identifier: Apache-2.0
"""The texts of exceptions: with Python's names, and with what to do."""

import asyncio
import os
import re
import signal

import dlx
import numpy as np
import pytest
from conftest import PATIENCE, until

DATA = np.arange(6, dtype=np.float32)


def rows(text):
    """Pairs of a call and its exception: the type, and words of the text."""
    return re.findall(r"^(\S.*)\n((?: .*\n)+)", text, re.MULTILINE)


def check(row, **names):
    """Makes the call of a row with these names; returns the text of the exception."""
    call, raised = row
    error, words = " ".join(raised.split()).split(": ", 1)
    with pytest.raises(Exception) as e:
        eval(call, {**globals(), **names})
    text = " ".join(str(e.value).split())
    assert type(e.value).__name__ == error and words in text, text
    return text


PUBLISH = rows("""
p.publish(DATA, {"k": 1})
    TypeError: metadata is named, publish(x, meta={...})
p.publish(DATA, meta={"k": DATA})
    TypeError: is an array, of type ndarray: publish it as a tensor of the message, or as a
    list (tolist())
p.publish(DATA, meta={"k": object()})
    TypeError: is of type object
p.publish(DATA, meta="k")
    TypeError: metadata is a dict or bytes, not str: meta={"key": value}
p.publish(np.array(["2020-01-01"], "datetime64[s]"))
    BufferError: publish its number, x.astype("int64"), and say its unit in meta
p.publish(np.timedelta64(3, "s"))
    BufferError: publish its number, x.astype("int64")
p.publish(np.array(["abc"]))
    BufferError: put text into meta, or publish its bytes as uint8
p.publish(np.array([object()]))
    BufferError: Python objects to numbers, x.astype("float32")
p.publish(np.zeros(3, dtype=[("a", "i4")]))
    BufferError: publish its fields as named tensors
p.publish(np.zeros(3, ">f4"))
    BufferError: x.astype(x.dtype.newbyteorder("="))
p.publish(3.0)
    TypeError: convert it, by numpy.asarray() for example
p.publish(DATA, strict=True)
    WouldCopy: is not the dlx.Tensor that empty() of this publisher returned, but perhaps an
    array made of it, so it would be copied, which strict=True forbids
p.publish(DATA, timeout="1")
    TypeError: a time is a number of seconds, such as 0.5
p.publish(DATA, tmeout=1)
    TypeError: 'tmeout': it has tensors, meta, timeout,
p.publish({"step": 3})
    InvalidError: a message of 0 tensors (limit 65535): publish at least one, and scalars alone
    as its meta
p.empty_like({})
    InvalidError: a message of 0 tensors (limit 65535)
p.publish({"x": DATA, "text": "x" * 70000})
    InvalidError: topic cam/front: 70024 bytes of metadata and scalars (limit 65536): publish
    what is large as a tensor
""")


@pytest.mark.parametrize("row", PUBLISH, ids=lambda row: row[0])
def test_publish_says_what_it_wants(pair, row):
    check(row, p=pair[0])


CONNECTION = rows("""
c.publisher(["cam"])
    TypeError: a topic is a str such as "cam/front", not ['cam']
c.subscribe(3)
    TypeError: a topic is a str such as "cam/front", not 3
c.drop_retained(None)
    TypeError: a topic is a str such as "cam/front", not None
c.get(("a",), timeout=0)
    TypeError: a topic is a str
c.publisher("a", retain=2000)
    InvalidError: publisher on a: retain 2000 must be at most 1024
c.publisher("a", retain_for=5)
    InvalidError: publisher on a: retain_for without messages to retain: set retain
c.publisher("a", retain=1, retain_for=-1)
    ValueError: a time is a number of seconds >= 0
c.subscribe("a", spin=-1)
    ValueError: a time is a number of seconds >= 0
c.subscribe("a", stream_timeout=0)
    ValueError: stream_timeout is more than 0 seconds
c.subscribe("a", latest=True, reliable=True)
    InvalidError: latest=True passes messages over
c.publisher("a", require=1, timeout=0).publish(DATA)
    Timeout: since require is 1
c.subscribe("a", latest="no")
    TypeError: True or False is wanted, not 'no'
c.subscribe("a", reliable="yes")
    TypeError: True or False is wanted, not 'yes'
dlx.connect(autospawn="no")
    TypeError: True or False is wanted, not 'no'
c.publisher("a").publish(DATA, strict="no")
    TypeError: True or False is wanted, not 'no'
c.publisher("a", depth="3")
    TypeError: depth is a whole number, not '3'
c.get("nobody", timeout=0)
    Timeout: topic nobody has no message: nobody publishes it at
c.get("nobody", timeout=0.01)
    Timeout: nobody publishes it
c.get("nobody")
    Timeout: ; get(topic, timeout=None), or with seconds, waits for one
c.get("cam/front")
    Timeout: topic cam/front has no message; get(topic, timeout=None), or with seconds, waits
    for one
c.get("nobody", timeout="1")
    TypeError: a number of seconds, such as 0.5, or None for no limit: not '1'
c.subscribe("nobody").take(timeout=0.01)
    Timeout: topic nobody: no message within 0.01 s, since nobody publishes it
c.subscribe("nobody").take(timeout=0)
    Timeout: topic nobody has no message, since nobody publishes it
c.subscribe("cam/front", reliable=True)
    InvalidError: make it a publisher that blocks (on_full="block"), or subscribe without
    reliable=True
""")


@pytest.mark.parametrize("row", CONNECTION, ids=lambda row: row[0])
def test_a_connection_says_what_it_wants(pair, c, row):
    assert "dlx_" not in check(row, c=c)


def test_a_wait_for_a_present_publisher_names_none_missing(pair):
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


def test_a_connect_that_may_start_no_daemon_says_why_in_words_of_python(folders, nobody_else):
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
