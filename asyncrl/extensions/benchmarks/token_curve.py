"""Success against tokens: how much of a checkpoint's success is there within so many sampled tokens. Pure.

    within 64 tokens: right is what is right and took 64 at most; what took more would have been cut off

That is what the same answers are worth under a limit, not what a policy that knows of the limit would say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncrl.evaluation.statistics import clustered_mean
from asyncrl.extensions.benchmarks.curve_figure import Point, curve_figure

Row = Mapping[str, Any]
MOST_LIMITS = 24
"""Powers of two beyond any episode's tokens."""


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
    lines = {
        name: [Point(point["limit"], point["success"]["mean"]) for point in points]
        for name, points in curves.items()
    }
    limits = sorted({point["limit"] for points in curves.values() if len(points) > 1 for point in points})
    return curve_figure(
        "Success against tokens, drawn",
        "Success within a limit of tokens, by checkpoint",
        "tokens of a sample at most",
        lines,
        limits,
    )
