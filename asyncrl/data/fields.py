"""Strict reading of decoded messages: every field has a type and a range, and unknown keys are refused."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from asyncrl.errors import InputError

MAX_STRING = 65_536
"""Characters of an id, name or error text."""
MAX_INT = 2**53
"""Integers stay exact in JSON and fit SQLite."""
MAX_NUMBER = 1e30
"""Rewards and times stay finite in float32, and so do their sums."""
MAX_NESTING = 64
"""Depth of the free-form parts (`Task.data`)."""
MAX_NAMES = 1024
"""Named numbers of one map, such as the components of a reward."""

T = TypeVar("T")


class Fields:
    """The fields of one decoded map, taken one by one. `where` names the map in errors: `trajectories[3]`."""

    __slots__ = ("_left", "where")

    def __init__(self, raw: Any, where: str) -> None:
        if type(raw) is not dict:
            raise InputError(f"{where} must be a map, got {type(raw).__name__}")
        self._left = dict(raw)
        self.where = where

    def take(self, name: str, kind: type[T]) -> T:
        """Remove and return a field of exactly this type."""
        try:
            value = self._left.pop(name)
        except KeyError:
            raise InputError(f"{self.where}.{name} is missing") from None
        if type(value) is not kind:
            raise InputError(f"{self.where}.{name} must be {kind.__name__}, got {type(value).__name__}")
        return value

    def has(self, name: str) -> bool:
        """Return whether a field is there that was not taken yet."""
        return name in self._left

    def optional(self, name: str, kind: type[T], default: T) -> T:
        """As `take`; `default` where there is no such field."""
        return self.take(name, kind) if name in self._left else default

    def text(self, name: str, allow_empty: bool = True) -> str:
        value = self.take(name, str)
        check_text(value, f"{self.where}.{name}")
        if not value and not allow_empty:
            raise InputError(f"{self.where}.{name} must not be empty")
        return value

    def long_text(self, name: str, most: int) -> str:
        """An optional text of up to `most` characters whose content is not checked; "" without one."""
        value = self._left.pop(name, "")
        if type(value) is not str or len(value) > most:
            raise InputError(f"{self.where}.{name} must be str of at most {most} characters")
        return value

    def integer(self, name: str, low: int = -MAX_INT, high: int = MAX_INT) -> int:
        value = self.take(name, int)
        if not low <= value <= high:
            raise InputError(f"{self.where}.{name} must lie in [{low}, {high}], got {_shown(value)}")
        return value

    def number(self, name: str, low: float = -math.inf) -> float:
        """A float of at most `MAX_NUMBER`; integers are accepted."""
        return self._as_number(self._left.pop(name, None), name, low)

    def optional_bool(self, name: str) -> bool | None:
        if name in self._left and self._left[name] is None:
            return self._left.pop(name)
        return self.take(name, bool)

    def optional_text(self, name: str) -> str | None:
        if name in self._left and self._left[name] is None:
            return self._left.pop(name)
        return self.text(name)

    def numbers(self, name: str) -> dict[str, float]:
        """A map from at most `MAX_NAMES` names to finite floats."""
        raw = self.take(name, dict)
        if len(raw) > MAX_NAMES:
            raise InputError(f"{self.where}.{name} must have at most {MAX_NAMES} names, got {len(raw)}")
        for key in raw:
            check_text(key, f"{self.where}.{name} key")
        return {key: self._as_number(value, f"{name}[{key!r}]", -math.inf) for key, value in raw.items()}

    def free_form(self, name: str) -> dict[str, Any]:
        """A map of JSON values."""
        raw = self.take(name, dict)
        check_json(raw, f"{self.where}.{name}")
        return raw

    def close(self) -> None:
        """Refuse the fields that were not taken."""
        if self._left:
            unknown = ", ".join(sorted(str(key)[:64] for key in self._left)[:8])
            raise InputError(f"{self.where} has unknown fields: {unknown}")

    def _as_number(self, value: Any, name: str, low: float) -> float:
        if type(value) not in (int, float):
            raise InputError(f"{self.where}.{name} must be a number, got {type(value).__name__}")
        if not (abs(value) <= MAX_NUMBER and value >= low):
            raise InputError(
                f"{self.where}.{name} must lie in [{max(low, -MAX_NUMBER)}, {MAX_NUMBER}], got {_shown(value)}"
            )
        return float(value)


def check_text(value: Any, where: str) -> None:
    """Raise `InputError` unless `value` is a string that UTF-8 can encode and that is not too long."""
    if type(value) is not str:
        raise InputError(f"{where} must be str, got {type(value).__name__}")
    if len(value) > MAX_STRING:
        raise InputError(f"{where} must have at most {MAX_STRING} characters, got {len(value)}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{where} must be valid Unicode, got a lone surrogate")


def check_json(value: Any, where: str, depth: int = 0) -> None:
    """Raise `InputError` unless `value` consists of JSON's types, finite numbers and string keys."""
    if depth > MAX_NESTING:
        raise InputError(f"{where} must nest at most {MAX_NESTING} deep")
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int or kind is float:
        if not (math.isfinite(value) if kind is float else abs(value) <= MAX_INT):
            raise InputError(f"{where} must be finite and at most 2**53 when whole")
    elif kind is str:
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise InputError(f"{where} must be valid Unicode, got a lone surrogate")
    elif kind is list or kind is tuple:
        for index, item in enumerate(value):
            check_json(item, f"{where}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            check_text(key, f"{where} key")
            check_json(item, f"{where}.{key[:64]}", depth + 1)
    else:
        raise InputError(f"{where} must be a JSON value, got {kind.__name__}")


def _shown(value: float) -> str:
    """The value, unless it is an integer too long to print."""
    return str(value) if abs(value) < 2**64 or type(value) is float else "a huge integer"
