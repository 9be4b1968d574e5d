"""Measurements kept between commands: one takes a quarter of a minute, and follows from what it is of and from code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import Any

from asyncrl.cache import cache_file, code_digest
from asyncrl.jsonfile import write_json

MEASURED = ("algo", "train", "extensions")
"""The packages of asyncrl that a measurement runs."""
LIBRARIES = ("torch", "transformers", "peft", "deepspeed")


def remembered(subject: Any, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `measure()` does, of an earlier call for an equal subject if the code was the same, too.

    subject: plain data. Where it names code of the user's own (`my_loss:my_loss`) nothing is kept.
    """
    if _names_own_code(subject):
        return measure()
    file = cache_file("plans", json.dumps([subject, _code()], sort_keys=True), ".json")
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    found = measure()
    with contextlib.suppress(OSError):  # a folder that cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, found)
    return found


def _names_own_code(subject: Any) -> bool:
    if isinstance(subject, dict):
        return any(map(_names_own_code, subject.values()))
    if isinstance(subject, list | tuple):
        return any(map(_names_own_code, subject))
    return isinstance(subject, str) and ":" in subject


@cache
def _code() -> list[str]:
    """Return what changes with the code that measures."""
    return [code_digest(*MEASURED), *(f"{name} {metadata.version(name)}" for name in LIBRARIES)]
