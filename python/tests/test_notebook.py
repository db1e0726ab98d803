# SPDX-License-Identifier: Apache-2.0
"""Output for a program or notebook: tables of messages and tensors, warnings of copies."""

import gc
import warnings

import dlx
import numpy as np
import pytest
from conftest import PATIENCE


def test_the_table_of_a_message_shows_names_types_and_shapes_and_holds_nothing(pair):
    pub, sub = pair
    pub.publish(
        {
            "rgb": np.zeros((480, 640, 3), "uint8"),
            "<b>": np.float64(1),
            "half": np.zeros((0, 2), "float16"),
        }
    )
    msg = sub.take()
    html = msg._repr_html_()
    for words in (
        "dlx.NamedMessage topic=cam/front seq=1",
        "<td>rgb</td><td>uint8</td><td>480 x 640 x 3</td><td>900.0 KiB</td>",
        "<td>&lt;b&gt;</td><td>float64</td><td>scalar</td><td>8 B</td>",
        "<td>half</td><td>float16</td><td>0 x 2</td><td>0 B</td>",
    ):
        assert words in html, html
    msg.release()
    gc.collect()
    assert sub.stats()["n_held"] == 0 and "rgb" in html
    assert msg._repr_html_() == "<div>dlx.NamedMessage, released</div>"


def test_the_table_of_a_tensor(pair):
    pub, sub = pair
    x = pub.zeros((2, 3), "int16")
    assert "<td></td><td>int16</td><td>2 x 3</td><td>12 B</td>" in x._repr_html_()
    assert not x.published
    assert not pub.publish(x, strict=True).copied  # the table is nothing that was made of it
    assert x._repr_html_() == "<div>dlx.Tensor, published</div>"
    with sub.take() as msg:
        t = msg[0]
    assert "read-only, received" in t._repr_html_()
    del t
    assert sub.stats()["n_held"] == 0


def test_a_long_table_says_what_it_leaves_out(pair):
    pub, sub = pair
    pub.publish({f"t{i}": b"x" for i in range(60)})
    html = sub.take()._repr_html_()
    assert html.count("<tr>") == 52 and "and 10 more" in html


def copies(pub, publish):
    """The words of the warnings of some calls."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            publish(pub)
    return [
        str(w.message)
        for w in told
        if issubclass(w.category, RuntimeWarning) and w.filename == __file__
    ]


def publish_live(pub):
    x = pub.zeros(4)
    a = np.asarray(x)
    assert pub.publish(x).copied
    del a


def publish_many_live(pub):
    x = pub.zeros(4)
    a = np.asarray(x)
    pub.publish_many([b"1", {"x": x}])
    del a


def publish_dead(pub):
    x = pub.zeros(4)
    a = np.asarray(x)
    del a
    assert not pub.publish(x).copied


@pytest.mark.parametrize("publish", [publish_live, publish_many_live])
def test_a_copy_because_of_a_live_array_is_told_once_a_publisher(c, publish):
    for topic in ("a", "b"):
        with c.publisher(topic) as pub:
            told = copies(pub, publish)
            assert len(told) == 1
            assert told[0].startswith(f"topic {topic}: tensor 0 is copied, since 1 array(s)")
            assert "(del)" in told[0]


def test_copies_that_the_caller_could_not_avoid_are_not_told(c):
    with (
        c.publisher("a") as pub,
        c.publisher("b") as other,
        c.subscribe("b", timeout=PATIENCE) as sub,
    ):
        assert copies(pub, publish_dead) == []
        assert copies(pub, lambda pub: pub.publish(np.zeros(3))) == []
        assert copies(pub, lambda pub: pub.publish(other.zeros(3))) == []
        other.publish(b"1")
        msg = sub.take()
        assert copies(pub, lambda pub: pub.publish(msg)) == []


def test_a_warning_that_is_an_error_publishes_nothing(c):
    with c.publisher("a") as pub:
        x = pub.zeros(4)
        a = np.asarray(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="is copied"):
                pub.publish(x)
        assert pub.stats()["published"] == 0 and not x.published
        del a
        assert not pub.publish(x).copied
