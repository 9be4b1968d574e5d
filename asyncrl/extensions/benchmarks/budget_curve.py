"""Success against the thinking that is allowed: evaluations that differ in their budget alone, as one curve. Pure.

Each budget is an evaluation of its own, so that the policy answered under it: unlike success within a limit of tokens
(`token_curve`), which cuts off answers that knew of none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.curve_figure import Point, curve_figure
from asyncrl.extensions.benchmarks.tables import Cell, Table

MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """How long is thought, in tokens."""

    most: int | None = None
    """After so many it is ended."""
    least: int | None = None
    """Before so many it goes on."""

    @property
    def text(self) -> str:
        """What is said of it: "at most 128"; "" without bounds."""
        bounds = (("at least", self.least), ("at most", self.most))
        return ", ".join(f"{word} {bound:,}" for word, bound in bounds if bound is not None)

    @property
    def place(self) -> tuple[int, float]:
        """By which budgets are ordered, from short to long."""
        return (self.least or 0, float("inf") if self.most is None else self.most)


@dataclass(frozen=True, slots=True)
class Price:
    """What a checkpoint's tokens cost, in any currency."""

    read: float
    """A million tokens that it reads."""
    sampled: float
    """A million tokens that it samples."""


def budget_curve(
    measured: Sequence[tuple[Budget, Mapping[str, Any]]], price: Price | None = None
) -> list[dict[str, Any]]:
    """Return the points of a checkpoint on one data set or suite, from the shortest budget to the longest.

    measured: each budget with its `score`, and the `tokens` and `read_tokens` of a sample on average. cost: of a sample
    on average; None without a price, and where it is not known how much was read. Budgets without a score are left out.
    """
    found: list[dict[str, Any]] = []
    for budget, one in sorted(measured, key=lambda pair: pair[0].place):
        if one.get("score") is None:
            continue
        read, cost = one.get("read_tokens"), None
        if price is not None and read is not None:
            cost = (read * price.read + one["tokens"] * price.sampled) / MILLION
        found.append(
            {
                "most_thinking": budget.most,
                "least_thinking": budget.least,
                "success": one["score"],
                "tokens": one["tokens"],
                "cost": cost,
            }
        )
    return found


def parse_prices(given: Sequence[str], checkpoints: Sequence[str]) -> dict[str, Price]:
    """Return the price of each checkpoint. given: `READ,SAMPLED`, or `CHECKPOINT=READ,SAMPLED` for one of several.

    Raises `ConfigError`.
    """
    found: dict[str, Price] = {}
    for text in given:
        name, _, numbers = text.rpartition("=")
        try:
            read, sampled = (float(number) for number in numbers.split(","))
        except ValueError:
            read = sampled = -1.0
        if not (0 <= read < float("inf") and 0 <= sampled < float("inf")):
            raise ConfigError(
                f"--price: must be READ,SAMPLED, of a million tokens each, as in 0.1,0.4 or late=0.1,0.4; got {text!r}"
            )
        if name and name not in checkpoints:
            raise ConfigError(
                f"--price {text}: {name!r} was not evaluated; allowed: {', '.join(checkpoints)}"
            )
        for one in [name] if name else checkpoints:
            if name or one not in found:
                found[one] = Price(read, sampled)
    return found


def budget_table(curves: Sequence[Mapping[str, Any]]) -> Table:
    """Return the points of all curves as a table."""
    rows: list[list[str | Cell]] = [
        [
            curve["checkpoint"],
            curve["on"],
            Budget(point["most_thinking"], point["least_thinking"]).text or "no bounds",
            Cell(point["success"]),
            f"{point['tokens']:.0f}",
            "not known" if point["cost"] is None else f"{point['cost']:.6g}",
        ]
        for curve in curves
        for point in curve["points"]
    ]
    header: tuple[str, ...] = ("checkpoint", "on", "thinking", "success", "tokens", "cost")
    if all(point["cost"] is None for curve in curves for point in curve["points"]):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return Table(
        "Success against thinking",
        "Evaluations that differ in their budget of thinking alone, each with its 95 % interval. Tokens, and cost, are "
        "those of a sample on average; a turn reads all that stands before it.",
        header,
        rows,
    )


def budget_figures(curves: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the curves as figures: success against tokens, and against cost where it is known."""
    found = []
    for key, axis in (("tokens", "sampled tokens of a sample on average"), ("cost", "cost of a sample")):
        lines = {f"{curve['checkpoint']} on {curve['on']}": _points(curve["points"], key) for curve in curves}
        about = f"Success by budget of thinking against {key}, a line for each checkpoint"
        found.append(curve_figure(f"Success against {key}, by budget of thinking", about, axis, lines))
    return [figure for figure in found if figure]


def _points(points: Sequence[Mapping[str, Any]], key: str) -> list[Point]:
    """Return what can be drawn: rewards have no scale of their own."""
    found = []
    for point in points:
        mean, low, high = (point["success"][name] for name in ("mean", "ci_low", "ci_high"))
        if point[key] and all(one is None or 0 <= one <= 1 for one in (mean, low, high)):
            found.append(Point(point[key], mean, low, high))
    return found
