"""Checked reading of what the API formats have in common."""

from __future__ import annotations

from typing import Any

from asyncrl.errors import InputError

MAX_N = 128
MAX_STOP = 16


def integer(body: dict[str, Any], name: str, default: int, low: int, high: int = 2**31 - 1) -> int:
    """An optional whole number. Raises `InputError`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name}: must be a whole number from {low} to {high}, got {value!r}")
    return value


def number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    """An optional number. Raises `InputError`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name}: must be a number from {low:g} to {high:g}, got {value!r}")
    return float(value)


def stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    """Stop strings: null, one, or a list. Raises `InputError`."""
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or len(given) > MAX_STOP or not all(isinstance(s, str) for s in given):
        raise InputError(f"{name}: must be a string or a list of at most {MAX_STOP} strings, got {value!r}")
    return tuple(s for s in given if s)


def ignored(body: dict[str, Any], neutral: dict[str, tuple[Any, ...]]) -> tuple[str, ...]:
    """Names of given parameters that have no effect here; `neutral` holds the values that ask for nothing."""
    return tuple(
        name for name, free in neutral.items() if body.get(name) is not None and body[name] not in free
    )


def refuse(body: dict[str, Any], allowed: dict[str, tuple[Any, ...]]) -> None:
    """Raise `InputError` for parameters whose effect an agent would miss. `allowed` maps names to values."""
    for name, values in allowed.items():
        value = body.get(name)
        if value is not None and value not in values:
            shown = ", ".join(map(repr, values)) or "left out"
            raise InputError(f"{name}: {str(value)[:100]} is not supported here; it must be {shown}")


SAMPLING_IGNORED: dict[str, tuple[Any, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (-1, 0),
    "min_p": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "logit_bias": ({},),
    "reasoning_effort": (),
}
"""They would change the distribution that the trainer assumes."""
