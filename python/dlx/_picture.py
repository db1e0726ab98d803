# SPDX-License-Identifier: Apache-2.0
"""Pictures of tensors for notebooks, by the rules of `dlxctl view` (cli/picture.h): images, and
heat maps of other tensors of two dimensions. NumPy makes them; without it, there are none.
"""

import math
import struct
import zlib

WIDTH, HEIGHT = 320, 240
_HEAT_MIN = 16  # rows and columns that a heat map keeps
_POSITIONS = 500_000  # of a tensor that are read, at most
_MAGENTA = (255, 0, 255)  # NaN
_VIRIDIS = bytes.fromhex("440154482475414487355f8d2a788e21918c22a88444bf707ad151bddf26fde725")


def _plane(shape, dtype):
    """Returns the kind of the picture, the shape in rows, columns and channels, and the axes in
    this order; None without a picture."""
    axes = list(range(len(shape)))
    has_channel = False
    while len(axes) > 2 and shape[axes[0]] == 1:
        del axes[0]
        has_channel = True
    if len(axes) == 3 and shape[axes[2]] == 1:
        del axes[2]
        has_channel = True
    floating = dtype in ("float16", "float32", "float64", "bfloat16")
    has_range = floating or dtype in ("uint8", "bool")
    if math.prod(shape) == 0 or len(axes) not in (2, 3):
        return None
    if len(axes) == 2:
        return "image" if has_range and (has_channel or not floating) else "heat", axes
    if has_range and shape[axes[2]] in (3, 4):
        return "image", axes
    return ("image", [axes[1], axes[2], axes[0]]) if has_range and shape[axes[0]] == 3 else None


def _axis(np, n_items, n_pixels, n_each):
    """Returns the items that are read, up to n_each below each pixel, and where pixels begin."""
    ends = [i * n_items // n_pixels for i in range(n_pixels + 1)]
    at, begins = [], []
    for first, end in zip(ends, ends[1:], strict=False):
        n = min(end - first, n_each)
        begins.append(len(at))
        at += [first + k * (end - first) // n for k in range(n)]
    return np.array(at), np.array(begins)


def _size(rows, columns, kind, width, height):
    """Returns the height and the width of a picture that fits."""
    scale = min(width / columns, height / rows, 1)
    least = _HEAT_MIN if kind == "heat" else 1
    return [
        min(max(round(n * scale), min(least, n)), most)
        for n, most in ((rows, height), (columns, width))
    ]


def _averages(np, numbers, y0, x0):
    """Returns the average below each pixel: NaN if half of the items are."""

    def total(a):
        return np.add.reduceat(np.add.reduceat(a, y0, 0), x0, 1)

    finite = np.isfinite(numbers)
    n, n_nan, n_finite, n_above, n_below = (
        total(x.astype("int32"))
        for x in (
            np.ones_like(finite),
            np.isnan(numbers),
            finite,
            np.isposinf(numbers),
            np.isneginf(numbers),
        )
    )
    share = 2.0**-24  # so that no sum of finite values is infinite
    mean = total(np.where(finite, numbers, 0) * share) / np.maximum(n_finite, 1) / share
    infinite = np.where(n_above >= n_below, np.inf, -np.inf)
    return np.where(2 * n_nan >= n, np.nan, np.where(n_finite > 0, mean, infinite))


def _paint(np, means, kind, full):
    """Returns the pixels, uint8, of averages."""
    colours = means[..., :3]
    finite = colours[np.isfinite(colours)]
    least, most = (finite.min(), finite.max()) if finite.size else (0, 0)
    low, high = (0, full) if kind == "image" and least >= 0 and most <= full else (least, most)
    span = high / 2 - low / 2
    halves = np.where(np.isnan(colours), low, np.clip(colours, low, high)) / 2 - low / 2
    place = np.clip(halves / span, 0, 1) if span > 0 else np.zeros_like(colours)
    if kind == "heat":
        viridis = np.frombuffer(_VIRIDIS, "uint8").reshape(-1, 3)
        tenths = np.linspace(0, 1, len(viridis))
        rgb = np.stack([np.interp(place[..., 0], tenths, viridis[:, c]) for c in range(3)], -1)
    else:
        rgb = np.broadcast_to(place * 255, (*place.shape[:2], 3))
    pixels = np.rint(rgb).astype("uint8")
    pixels[np.isnan(colours).any(-1)] = _MAGENTA
    if means.shape[2] == 4:
        alpha = np.nan_to_num(means[..., 3:] / full, nan=1)
        pixels = np.concatenate([pixels, np.rint(np.clip(alpha, 0, 1) * 255).astype("uint8")], -1)
    return pixels


def _read(np, tensor, kind, axes, width, height):
    """Returns copies of the items that are read, and where the rows and columns of pixels begin."""
    from . import _numpy

    bfloat = tensor.dtype == "bfloat16"
    values = np.asarray(tensor._as_bits()) if bfloat else _numpy.view(tensor)
    values = values[tuple(slice(None) if i in axes else 0 for i in range(values.ndim))]
    values = values.transpose([sorted(axes).index(i) for i in axes])
    h, w = _size(*values.shape[:2], kind, width, height)
    n_each = max(math.isqrt(_POSITIONS // (w * h)), 1)
    y, y0 = _axis(np, values.shape[0], h, n_each)
    x, x0 = _axis(np, values.shape[1], w, n_each)
    read = values[y[:, None], x].reshape(len(y), len(x), -1)
    if bfloat:
        read = (read.view("uint16").astype("uint32") << 16).view("float32")
    return (np.abs(read) if read.dtype.kind == "c" else read).astype("float64"), y0, x0


def pixels(tensor, width=WIDTH, height=HEIGHT):
    """Returns the picture of a tensor as rows of RGB or RGBA, uint8; None if it has none, or is not
    readable here, such as on a GPU. Nothing of the tensor is kept.
    """
    plane = _plane(tensor.shape, str(tensor.dtype))
    if plane is None:
        return None
    try:
        import numpy as np

        with np.errstate(all="ignore"):
            numbers, y0, x0 = _read(np, tensor, *plane, width, height)
            means = _averages(np, numbers, y0, x0)
            return _paint(np, means, plane[0], 255 if tensor.dtype == "uint8" else 1)
    except Exception:  # no NumPy, a type that it lacks, or memory that is not readable here
        return None


def png(rows):
    """Returns the file of pixels that pixels() has made."""
    height, width, n_channels = rows.shape
    lines = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind, data):
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">2I5B", width, height, 8, 6 if n_channels == 4 else 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines, 6))
        + chunk(b"IEND", b"")
    )
