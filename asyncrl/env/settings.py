"""Checks of an environment's settings. Each returns the value, or raises `ValueError` naming it and what is allowed."""

from __future__ import annotations

from typing import Any


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """Return `value`. Raises `ValueError` unless it is an integer from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name}: must be an integer from {least} to {most}, got {value!r}")
    return value


def share(name: str, value: Any) -> float:
    """Return `value`. Raises `ValueError` unless it is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise ValueError(f"{name}: must be a number from 0 to 1, got {value!r}")
    return float(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return `value`. Raises `ValueError` unless it is one of those."""
    if value not in allowed:
        raise ValueError(f"{name}: must be one of {', '.join(allowed)}, got {value!r}")
    return str(value)
