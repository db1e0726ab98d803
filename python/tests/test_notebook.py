# SPDX-License-Identifier: Apache-2.0
"""Output for a program or notebook: tables of messages and tensors, warnings of copies."""

import gc
import struct
import warnings
import zlib

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


# The first and the last colour of a heat map, and that of NaN.
LEAST, MOST, MAGENTA = (0x44, 0x01, 0x54), (0xFD, 0xE7, 0x25), (255, 0, 255)


def decoded(file):
    """The pixels of a PNG file whose lines have no filter."""
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(file):
        (n,) = struct.unpack_from(">I", file, at)
        kind, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + n]
        assert struct.unpack_from(">I", file, at + 8 + n)[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        at += n + 12
    width, height, bits, colours = struct.unpack_from(">2I2B", chunks[b"IHDR"])
    assert bits == 8 and colours in (2, 6)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), "uint8").reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 4 if colours == 6 else 3)


def pixels_of(pair, values):
    """The picture of a received tensor, or None; nothing is held afterwards."""
    pub, sub = pair
    pub.publish(values)
    with sub.take() as msg:
        tensor = msg[0]
        file, html = tensor._repr_png_(), tensor._repr_html_()
        assert ("data:image/png" in html) == (file is not None)
        assert ("data:image/png" in msg._repr_html_()) == (file is not None)
    del tensor
    gc.collect()
    assert sub.stats()["n_held"] == 0
    return None if file is None else decoded(file)


@pytest.mark.parametrize(
    "shape, dtype, expected",
    [
        ((4, 6), "uint8", (4, 6, 3)),
        ((4, 6, 1), "uint8", (4, 6, 3)),
        ((4, 6, 3), "uint8", (4, 6, 3)),
        ((4, 6, 4), "uint8", (4, 6, 4)),
        ((3, 4, 6), "float32", (4, 6, 3)),
        ((1, 1, 3, 4, 6), "float16", (4, 6, 3)),
        ((4, 6), "float64", (4, 6, 3)),
        ((1, 4, 6), "int32", (4, 6, 3)),
        ((4, 6), "complex64", (4, 6, 3)),
        ((4, 6), "bool", (4, 6, 3)),
        ((480, 640, 3), "uint8", (240, 320, 3)),
        ((10000, 4), "float32", (240, 4, 3)),
        ((4, 6, 3), "uint16", None),
        ((4, 6, 2), "uint8", None),
        ((2, 3, 4, 6), "uint8", None),
        ((24,), "uint8", None),
        ((0, 6), "uint8", None),
        ((), "float32", None),
    ],
)
def test_shape_and_type_decide_which_picture_it_is(pair, shape, dtype, expected):
    pixels = pixels_of(pair, np.ones(shape, dtype))
    assert (None if pixels is None else pixels.shape) == expected


def test_images_keep_their_colours(pair):
    rgb = np.arange(30, dtype="uint8").reshape(2, 5, 3)
    assert (pixels_of(pair, rgb) == rgb).all()
    assert (pixels_of(pair, np.ascontiguousarray(rgb.transpose(2, 0, 1))) == rgb).all()
    grey = np.array([[0, 0.2], [0.4, 1]], "float32")[..., None]
    assert pixels_of(pair, grey)[..., 0].tolist() == [[0, 51], [102, 255]]
    # Values outside 0 to 1 are stretched.
    assert pixels_of(pair, grey * 10 - 5)[..., 1].tolist() == [[0, 51], [102, 255]]
    halves = np.array([[[0, 10], [20, 30]]], "uint8").repeat(300, 2).repeat(300, 1)
    assert pixels_of(pair, halves[0]).min() == 0 and pixels_of(pair, halves[0]).max() == 30


def test_heat_maps_show_the_least_the_greatest_and_nan(pair):
    values = np.array([[-2, 0, 2], [np.nan, np.inf, -np.inf]], "float32")
    pixels = pixels_of(pair, values)
    assert [tuple(p) for p in pixels.reshape(-1, 3).tolist()] == [
        LEAST,
        (0x21, 0x91, 0x8C),
        MOST,
        MAGENTA,
        MOST,
        LEAST,
    ]
    assert tuple(pixels_of(pair, np.full((2, 2), 3.0))[1, 1]) == LEAST
    assert tuple(pixels_of(pair, np.full((2, 2), np.nan))[1, 1]) == MAGENTA
    huge = np.array([[-1.7e308, 1.7e308]])
    assert [tuple(p) for p in pixels_of(pair, huge)[0].tolist()] == [LEAST, MOST]
    # A pixel is NaN if half of its items are.
    mostly = np.ones((480, 640))
    mostly[::2, ::2] = np.nan
    assert tuple(pixels_of(pair, mostly)[0, 0]) == LEAST
    mostly[::2] = np.nan
    assert tuple(pixels_of(pair, mostly)[0, 0]) == MAGENTA


def test_bfloat16_has_a_picture_without_ml_dtypes(pair):
    pub, sub = pair
    x = pub.zeros((1, 2, 2), "bfloat16")
    np.asarray(x._as_bits()).view("uint16")[0] = [[0x0000, 0x3F00], [0x3F80, 0x3F80]]
    assert decoded(x._repr_png_())[..., 0].tolist() == [[0, 128], [255, 255]]


def test_a_picture_of_a_tensor_is_nothing_that_was_made_of_it(pair):
    pub, _ = pair
    x = pub.zeros((4, 6), "uint8")
    assert not decoded(x._repr_png_()).any()
    assert not pub.publish(x, strict=True).copied
    assert x._repr_png_() is None and "<img" not in x._repr_html_()


def test_a_message_shows_its_first_pictures_alone(pair):
    pub, sub = pair
    pub.publish({f"t{i}": np.zeros((3, 3), "uint8") for i in range(9)} | {"a": np.zeros(3)})
    with sub.take() as msg:
        assert msg._repr_html_().count("<img ") == 4


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
