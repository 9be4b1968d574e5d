"""Bodies of requests as JSON that everything behind can carry."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from asyncrl.errors import InputError

M = TypeVar("M", bound=BaseModel)
MAX_DEPTH = 100
"""Nesting of a body; chat templates and JSON writers are recursive."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape of half a surrogate pair; the other half may follow."""


def read_body(raw: bytes) -> dict[str, Any]:
    """Read a JSON object. Raises `InputError`, naming the place of what nothing downstream could take."""
    try:
        body = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"body: not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise InputError("body: must be a JSON object")
    if _SURROGATE.search(raw) or raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:
        _check(body)
    return body


def checked(form: type[M], raw: Any, name: str) -> M:
    """Return a body as a message of this form. Raises `InputError` naming the field, below `name`."""
    try:
        return form.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (name, *first["loc"]))
        raise InputError(f"{where}: {first['msg']}, got {str(first['input'])[:100]!r}") from None


def _check(body: dict[str, Any]) -> None:
    left: list[tuple[str, int, Any]] = [("", 0, body)]
    while left:
        where, depth, value = left.pop()
        if depth > MAX_DEPTH:
            raise InputError(f"{where[:200]}: nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            for key, item in value.items():
                _check_text(key, where or "body")
                left.append((f"{where}.{key}" if where else key, depth + 1, item))
        elif isinstance(value, list):
            left += [(f"{where}[{number}]", depth + 1, item) for number, item in enumerate(value)]
        elif isinstance(value, str):
            _check_text(value, where)


def _check_text(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where[:200]}: character {error.start} is half a surrogate pair, which UTF-8 cannot carry; "
            "send whole characters"
        ) from None
