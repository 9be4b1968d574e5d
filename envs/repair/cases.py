"""Random arguments for every function of the library, for tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Draw = Callable[[random.Random], list[Any]]


def _numbers(rng: random.Random, low: int = -9, high: int = 9, least: int = 1, most: int = 7) -> list[int]:
    return [rng.randint(low, high) for _ in range(rng.randint(least, most))]


def _spans(rng: random.Random) -> list[list[int]]:
    starts = [rng.randint(0, 12) for _ in range(rng.randint(0, 5))]
    return [[start, start + rng.randint(1, 4)] for start in starts]


def _apart(rng: random.Random) -> list[list[int]]:
    edges = sorted(rng.sample(range(14), 2 * rng.randint(0, 3)))
    return [[edges[i], edges[i + 1]] for i in range(0, len(edges), 2)]


def _rows(rng: random.Random) -> list[dict[str, Any]]:
    return [{"item": rng.choice("abc"), "count": rng.randint(0, 5)} for _ in range(rng.randint(0, 7))]


def _grid(rng: random.Random, square: bool = False) -> list[list[int]]:
    rows = rng.randint(1, 4)
    columns = rows if square else rng.randint(1, 4)
    return [[rng.randint(0, 9) for _ in range(columns)] for _ in range(rows)]


def _cell(rng: random.Random) -> list[Any]:
    grid = _grid(rng)
    return [grid, rng.randrange(len(grid)), rng.randrange(len(grid[0]))]


def _text(rng: random.Random, letters: str) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, 8)))


def _bounds(rng: random.Random) -> list[Any]:
    low = rng.randint(0, 5)
    return [_apart(rng), low, low + rng.randint(0, 9)]


def _window(rng: random.Random) -> list[Any]:
    values = _numbers(rng)
    return [values, rng.randint(1, len(values))]


CASES: dict[str, dict[str, Draw]] = {
    "spans": {
        "clamp": lambda r: [r.randint(-5, 9), 0, r.randint(0, 6)],
        "merge": lambda r: [_spans(r)],
        "gaps": _bounds,
        "overlap": lambda r: [[a := r.randint(0, 9), a + r.randint(1, 6)], [b := r.randint(0, 9), b + r.randint(1, 6)]],
    },
    "text": {
        "wrap": lambda r: [["x" * r.randint(1, 6) for _ in range(r.randint(0, 7))], r.randint(6, 12)],
        "run_lengths": lambda r: [_text(r, "aab")],
        "is_balanced": lambda r: [r.choice([_text(r, "()[]"), "(a[b])", "([)]", "(())", "[](", ")"])],
        "column": lambda r: [r.choice([r.randint(1, 60), r.randint(650, 760), 26, 27, 52, 702, 703])],
    },
    "series": {
        "median": lambda r: [_numbers(r)],
        "moving_sum": _window,
        "best_run": lambda r: [_numbers(r, -6, 6)],
        "digits": lambda r: [r.choice([0, 1, r.randint(2, 40), r.randint(100, 999)]), r.choice([2, 3, 10, 16])],
    },
    "tables": {
        "total_by": lambda r: [_rows(r), "item", "count"],
        "top": lambda r: [_rows(r), "count", r.randint(0, 4)],
        "page": lambda r: [list(range(r.randint(0, 9))), r.randint(1, 3), r.randint(1, 4)],
        "rank": lambda r: [_numbers(r, 0, 5)],
    },
    "shop": {
        "discount": lambda r: [r.randint(0, 999), r.choice([0, 5, 10, 33, 50, 100])],
        "shipping": lambda r: [r.choice([4999, 5000, 5001, 100, 9000]), r.randint(0, 6), r.random() < 0.5],
        "change": lambda r: [r.randint(0, 499), [200, 100, 50, 20, 10, 5, 2, 1]],
        "stock_after": lambda r: [r.randint(0, 12), _numbers(r, 1, 6)],
    },
    "grids": {
        "transpose": lambda r: [_grid(r)],
        "neighbours": _cell,
        "peaks": lambda r: [_grid(r)],
        "diagonal_sum": lambda r: [_grid(r, square=True)],
    },
}  # fmt: skip
"""Module and function -> a function that draws its arguments."""
