"""Success against tokens: how much of a checkpoint's success is there within so many sampled tokens. Pure.

    within 64 tokens: right is what is right and took 64 at most; what took more would have been cut off

That is what the same answers are worth under a limit, not what a policy that knows of the limit would say.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncrl.evaluation.statistics import clustered_mean

Row = Mapping[str, Any]
MOST_LIMITS = 24
"""Powers of two beyond any episode's tokens."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 260, 44, 40, 12, 16
"""Of the figure, in its own units."""
DASHES = ("", "7 4", "2 3", "10 3 2 3")
"""By which lines differ, beside their shade."""


def token_limits(rows: Sequence[Row]) -> list[int]:
    """Return powers of two, from one that no sample keeps within, or 1, to one that all do; none where no sample has
    tokens."""
    tokens = [int(row["tokens"]) for row in rows if row["tokens"]]
    if not tokens:
        return []
    first = max(0, math.ceil(math.log2(min(tokens))) - 1)
    last = min(MOST_LIMITS, math.ceil(math.log2(max(tokens))))
    return [2**power for power in range(first, max(first, last) + 1)]


def success_by_tokens(rows: Sequence[Row], limits: Sequence[int]) -> list[dict[str, Any]]:
    """Return for each limit the success within it, a mean over tasks with its interval, and the tokens that a sample
    takes on average where it ends at the limit. rows: the samples that count, each with a verdict."""
    found = []
    for limit in limits if rows else ():
        by_task: dict[str, list[float]] = {}
        for row in rows:
            right = bool(row["success"]) and row["tokens"] <= limit
            by_task.setdefault(row["task"], []).append(float(right))
        spent = sum(min(row["tokens"], limit) for row in rows) / len(rows)
        found.append({"limit": limit, "tokens": spent, "success": asdict(clustered_mean(by_task))})
    return found


def token_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the curves of checkpoints as a figure in HTML that loads nothing; "" without any of two points."""
    lines = {name: points for name, points in curves.items() if len(points) > 1}
    if not lines:
        return ""
    limits = sorted({point["limit"] for points in lines.values() for point in points})
    low, high = math.log2(limits[0]), math.log2(limits[-1])

    def place(limit: float, success: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(limit) - low) / (high - low)
        return f"{x:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (1 - success):.1f}"

    drawn, named = [], []
    for number, (name, points) in enumerate(lines.items()):
        dash = f' stroke-dasharray="{DASHES[number % len(DASHES)]}"' if number % len(DASHES) else ""
        style = f'class="curve c{number // len(DASHES) % 2}"{dash}'
        path = " ".join(place(point["limit"], point["success"]["mean"]) for point in points)
        drawn.append(f'<polyline {style} points="{path}"/>')
        named.append(
            f'<li><svg aria-hidden="true" viewBox="0 0 32 8"><line {style} x1="0" y1="4" x2="32" y2="4"/></svg> '
            f"{html.escape(name)}</li>"
        )
    return (
        '<h2>Success against tokens, drawn</h2><figure class="curves">'
        f'<svg role="img" aria-label="Success within a limit of tokens, by checkpoint" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"{_axes(limits, place)}{''.join(drawn)}</svg><figcaption><ul>{''.join(named)}</ul></figcaption></figure>"
    )


def _axes(limits: Sequence[int], place: Any) -> str:
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        left, right = place(limits[0], share).split(","), place(limits[-1], share).split(",")
        found.append(f'<line class="axis" x1="{left[0]}" y1="{left[1]}" x2="{right[0]}" y2="{right[1]}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{float(left[1]) + 4:.1f}" text-anchor="end">{share:g}</text>')
    step = max(1, math.ceil(len(limits) / 8))
    for limit in limits[::step]:
        x = place(limit, 0.0).split(",")[0]
        found.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{limit:,}</text>')
    middle = (LEFT + WIDTH - RIGHT) // 2
    found.append(
        f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">tokens of a sample at most</text>'
    )
    return "".join(found)
