"""Compare what an adapter returned with a vector's expected values."""

from __future__ import annotations

import math
from typing import Any


def largest_error(expected: Any, actual: Any, atol: float, rtol: float) -> tuple[float, list[str]]:
    """`(largest absolute error, complaints)`; text in `expected` is a note and is not compared."""
    worst, complaints = 0.0, []
    for path, want, got in _leaves(expected, actual, ""):
        if isinstance(got, str):
            complaints.append(f"{path}: {got}")
            continue
        error = abs(got - want)
        if math.isnan(error) or error > atol + rtol * abs(want):
            complaints.append(f"{path}: expected {want!r}, got {got!r}")
        worst = max(worst, error) if not math.isnan(error) else math.inf
    return worst, complaints


def _leaves(expected: Any, actual: Any, path: str):
    """Yield `(path, expected number, actual number or a complaint)`."""
    if isinstance(expected, str):
        return
    if isinstance(expected, dict):
        keys = {str(k): v for k, v in actual.items()} if isinstance(actual, dict) else {}
        wanted = {k: v for k, v in expected.items() if not isinstance(v, str)}
        for key, value in wanted.items():
            if key in keys:
                yield from _leaves(value, keys[key], f"{path}.{key}" if path else key)
            else:
                yield f"{path}.{key}" if path else key, 0.0, "no value"
        return
    actual = actual.tolist() if hasattr(actual, "tolist") else actual
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            size = len(actual) if isinstance(actual, list) else type(actual).__name__
            yield path, 0.0, f"expected {len(expected)} elements, got {size}"
            return
        for i, (want, got) in enumerate(zip(expected, actual, strict=True)):
            yield from _leaves(want, got, f"{path}[{i}]")
        return
    try:
        yield path, float(expected), float(actual)
    except (TypeError, ValueError):
        yield path, 0.0, f"expected a number, got {actual!r}"


def unexpected_sizes(expected: Any, actual: Any) -> list[str]:
    """Keys of compared dictionaries that only the library returned (a histogram bin too many)."""
    extra = []
    for key, want in expected.items():
        got = actual.get(key)
        if isinstance(want, dict) and isinstance(got, dict) and key != "agg":
            extra += [f"{key}: unexpected {k}" for k in map(str, got) if k not in want]
    return extra
