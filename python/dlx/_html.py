# SPDX-License-Identifier: Apache-2.0
"""How notebooks show messages and tensors: names, types, shapes, and pictures, which are copies."""

from base64 import b64encode
from html import escape

from . import _picture

_MOST = 50  # rows of a table
_PICTURES = 4  # of a message


def _size(n):
    """Returns a number of bytes with a unit."""
    if n < 1024:
        return f"{n} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        n /= 1024
        if n < 1024:
            break
    return f"{n:.1f} {unit}"


def table(title, rows):
    """Returns a table in HTML. Each row is key, data type, shape and bytes."""
    text = f"<div>{escape(title)}</div>"
    if not rows:
        return text
    lines = "".join(
        f"<tr><td>{escape(str(key))}</td><td>{escape(dtype)}</td>"
        f"<td>{escape(' x '.join(map(str, shape)) or 'scalar')}</td>"
        f"<td>{_size(n)}</td></tr>"
        for key, dtype, shape, n in rows[:_MOST]
    )
    if len(rows) > _MOST:
        lines += f'<tr><td colspan="4">and {len(rows) - _MOST} more</td></tr>'
    return (
        f"{text}<table><tr><th>tensor</th><th>data "
        f"type</th><th>shape</th><th>size</th></tr>{lines}</table>"
    )


def pictures(tensors):
    """Returns the pictures of the first tensors that have one."""
    text, n = "", 0
    for tensor in tensors:
        pixels = _picture.pixels(tensor) if n < _PICTURES else None
        if pixels is not None:
            n += 1
            # A small one is enlarged without a blur.
            height, width = pixels.shape[:2]
            zoom = max(min(_picture.WIDTH // width, _picture.HEIGHT // height), 1)
            text += (
                f'<img width="{width * zoom}" height="{height * zoom}" '
                f'style="image-rendering: pixelated" '
                f'src="data:image/png;base64,{b64encode(_picture.png(pixels)).decode()}">'
            )
    return text
