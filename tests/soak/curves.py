# SPDX-License-Identifier: Apache-2.0
"""Draws curves over time, below each other, as SVG."""

import html
import math

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP = 1100, 130, 70, 20, 48, 34
COLOURS = ("#1f5fa8", "#c2571a", "#3a7d44")


def nice_step(span, about):
    raw = span / about
    power = 10 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= raw)


def polylines(points, x, y):
    """Without a line where a value is missing."""
    run, runs = [], []
    for t, v in points:
        if v is None:
            runs.append(run)
            run = []
        else:
            run.append(f"{x(t):.1f},{y(v):.1f}")
    runs.append(run)
    return [" ".join(r) for r in runs if len(r) > 1]


def panel(out, top, title, lines, x, seconds, marks):
    """`lines`: [(name, [(t, value)])]."""
    most = max([v for _, points in lines for _, v in points if v is not None] or [1]) or 1
    step = nice_step(most, 4)
    ceiling = math.ceil(most / step) * step

    def y(value):
        return top + PANEL - value / ceiling * PANEL

    for t, colour in marks:
        out.append(
            f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{top + PANEL}" '
            f'stroke="{colour}" '
            'stroke-width="1"/>'
        )
    for i in range(round(ceiling / step) + 1):
        at = y(i * step)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>'
        )
        out.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{i * step:g}</text>')
    step = nice_step(seconds / 60, 10)
    for i in range(int(seconds / 60 / step) + 1):
        out.append(
            f'<text x="{x(i * step * 60):.1f}" y="{top + PANEL + 14}" '
            f'text-anchor="middle">{i * step:g}'
            f"{' min' if i == 0 else ''}</text>"
        )
    legend = LEFT
    out.append(f'<text x="{legend}" y="{top - 6}" font-weight="bold">{html.escape(title)}</text>')
    legend += 8 * len(title) + 20
    for (name, points), colour in zip(lines, COLOURS):
        for line in polylines(points, x, y):
            out.append(
                f'<polyline fill="none" stroke="{colour}" stroke-width="1.2" points="{line}"/>'
            )
        if len(lines) > 1:
            out.append(
                f'<text x="{legend}" y="{top - 6}" fill="{colour}">{html.escape(name)}</text>'
            )
            legend += 8 * len(name) + 20
    return top + PANEL + GAP + 14


def draw(title, panels, marks, seconds):
    """`panels`: [(title, lines)]; `marks`: [(t, colour)]. Returns the text of the file."""
    seconds = max(seconds, 1)
    height = TOP + 22 + len(panels) * (PANEL + GAP + 14)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{html.escape(title)}</text>',
    ]
    top = TOP

    def x(t):
        return LEFT + t / seconds * (WIDTH - LEFT - RIGHT)

    for name, lines in panels:
        top = panel(out, top, name, lines, x, seconds, marks)
    return "\n".join(out + ["</svg>", ""])
