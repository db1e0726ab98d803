# SPDX-License-Identifier: Apache-2.0
"""How notebooks show messages and tensors: names, types and shapes, but no data."""

from html import escape

_MOST = 50  # rows of a table


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
