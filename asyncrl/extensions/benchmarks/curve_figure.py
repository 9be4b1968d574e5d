"""Curves of success as a figure in HTML that loads nothing. Pure."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 260, 44, 40, 12, 16
"""Of the figure, in its own units."""
DASHES = ("", "7 4", "2 3", "10 3 2 3")
"""By which lines differ, beside their shade."""
MOST_TICKS = 8


class Point(NamedTuple):
    """What a line passes through."""

    x: float
    """Above 0: the axis is logarithmic."""
    mean: float
    """From 0 to 1, as are the bounds of its interval."""
    low: float | None = None
    high: float | None = None


def curve_figure(
    title: str,
    about: str,
    axis: str,
    lines: Mapping[str, Sequence[Point]],
    ticks: Sequence[float] | None = None,
) -> str:
    """Return lines as a figure below a heading; "" where no line has two points, or all have the same x.

    about: what it shows, for those who cannot see it. axis: what x is. ticks: values of x that are written below it;
    those of 1, 2 and 5 times powers of ten, if none are given.
    """
    drawable = {name: points for name, points in lines.items() if len(points) > 1}
    xs = sorted({point.x for points in drawable.values() for point in points})
    if len(xs) < 2:
        return ""
    scale = _Scale(xs[0], xs[-1])
    drawn, named = [], []
    for number, (name, points) in enumerate(drawable.items()):
        dash = f' stroke-dasharray="{DASHES[number % len(DASHES)]}"' if number % len(DASHES) else ""
        shade = f"c{number // len(DASHES) % 2}"
        style = f'class="curve {shade}"{dash}'
        path = " ".join(f"{scale.x(point.x):.1f},{scale.y(point.mean):.1f}" for point in points)
        drawn.append(f'<polyline {style} points="{path}"/>')
        drawn += [_interval(scale, point, shade) for point in points if point.low is not None]
        named.append(
            f'<li><svg aria-hidden="true" viewBox="0 0 32 8"><line {style} x1="0" y1="4" x2="32" y2="4"/></svg> '
            f"{html.escape(name)}</li>"
        )
    axes = _axes(scale, round_values(xs[0], xs[-1]) if ticks is None else ticks, axis)
    return (
        f'<h2>{html.escape(title)}</h2><figure class="curves">'
        f'<svg role="img" aria-label="{html.escape(about)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"{axes}{''.join(drawn)}</svg><figcaption><ul>{''.join(named)}</ul></figcaption></figure>"
    )


def round_values(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten from `low` to `high`; the bounds themselves where fewer than two are."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    listed = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    found = [one for one in listed if low <= one <= high]
    return found if len(found) > 1 else [low, high]


class _Scale:
    """Places values in the figure."""

    def __init__(self, first: float, last: float) -> None:
        self.first, self.last = first, last

    def x(self, value: float) -> float:
        share = math.log2(value / self.first) / math.log2(self.last / self.first)
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)


def _interval(scale: _Scale, point: Point, shade: str) -> str:
    assert point.low is not None and point.high is not None
    x, y = f"{scale.x(point.x):.1f}", f"{scale.y(point.mean):.1f}"
    low, high = f"{scale.y(point.low):.1f}", f"{scale.y(point.high):.1f}"
    return (
        f'<line class="interval {shade}" x1="{x}" y1="{low}" x2="{x}" y2="{high}"/>'
        f'<circle cx="{x}" cy="{y}" r="3"/>'
    )


def _axes(scale: _Scale, ticks: Sequence[float], axis: str) -> str:
    found = []
    left, right = f"{scale.x(scale.first):.1f}", f"{scale.x(scale.last):.1f}"
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = scale.y(share)
        found.append(f'<line class="axis" x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>')
    step = max(1, math.ceil(len(ticks) / MOST_TICKS))
    for tick in ticks[::step]:
        written = f"{tick:,.0f}" if tick >= 100 else f"{tick:.3g}"
        x = f"{scale.x(tick):.1f}"
        found.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{written}</text>')
    middle = (LEFT + WIDTH - RIGHT) // 2
    found.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{html.escape(axis)}</text>')
    return "".join(found)
