"""Whether calls are the right ones, by the rules of BFCL's own checker (its Python categories). Pure.

An answer is `{name: {argument: [values that are right]}}`, where "" among the values means that the argument may be
left out. `scripts/peers/bfcl_calls.py` runs BFCL's checker beside this one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.env.protocol import ToolCall
from asyncrl.env.tool_schemas import TYPES

_LEFT_OUT = re.compile(r"[ ,./\-_*^]")


def same_calls(
    calls: Sequence[ToolCall], answers: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> bool:
    """Return True if there is one call for each answer. Answers take the first call that fits, in their order.

    tools: descriptions of the functions, `{"function": {"name", "parameters"}}`.
    """
    left = list(calls)
    if len(left) != len(answers):
        return False
    for answer in answers:
        ((name, allowed),) = answer.items()
        schema = next(
            one["function"].get("parameters") or {} for one in tools if one["function"]["name"] == name
        )
        fits = (n for n, call in enumerate(left) if call.name == name and _fits(call, allowed, schema))
        if (found := next(fits, None)) is None:
            return False
        # Not by `remove`: another call may be equal that does not fit, with 5.0 for 5.
        del left[found]
    return True


def _fits(call: ToolCall, allowed: Mapping[str, Sequence[Any]], schema: Mapping[str, Any]) -> bool:
    described, given = schema.get("properties") or {}, call.arguments
    if any(name not in given for name in schema.get("required") or ()):
        return False
    if any(name not in described or name not in allowed for name in given):
        return False
    if any(name not in given and "" not in values for name, values in allowed.items()):
        return False
    return all(_right(value, allowed[name], described[name]) for name, value in given.items())


def _right(value: Any, allowed: Sequence[Any], schema: Mapping[str, Any]) -> bool:
    expected = TYPES.get(str(schema.get("type")))
    items = TYPES.get(str((schema.get("items") or {}).get("type"))) if expected is list else None
    if expected is float and type(value) is int:
        value = float(value)
    answer_type = _type_of(allowed)
    if not _has_type(value, allowed, expected, items):
        return False
    # Where the values that are right have another type than the description says, they are names of variables.
    if answer_type in (None, expected):
        if expected is dict:
            return any(isinstance(one, dict) and _same_object(value, one) for one in allowed)
        if expected is list and items is dict:
            return any(_same_objects(value, one) for one in allowed)
        if expected is str:
            return _plain(value) in [_plain(one) for one in allowed if isinstance(one, str)]
        if expected is list:
            plain = [_plain(one) for one in value]
            return plain in [[_plain(item) for item in one] for one in allowed if isinstance(one, str | list)]
    return value in allowed


def _type_of(allowed: Sequence[Any]) -> type | None:
    """Return the type of the values that are right; None where there is none but "may be left out"."""
    return next((type(one) for one in allowed if one != ""), None)


def _has_type(value: Any, allowed: Sequence[Any], expected: type | None, items: type | None) -> bool:
    given = type(value)
    if given is expected:
        return items is None or any(
            not isinstance(one, list) or all(_has_type(item, one, items, None) for item in value)
            for one in allowed
        )
    return given is _type_of(allowed)


def _same_object(value: Mapping[str, Any], right: Mapping[str, Sequence[Any]]) -> bool:
    """Each key of a right object lists the values that are right for it."""
    if any(key not in value and "" not in values for key, values in right.items()):
        return False
    return all(
        key in right and _plain(one) in [_plain(other) for other in right[key]] for key, one in value.items()
    )


def _same_objects(value: Sequence[Any], right: Any) -> bool:
    """Compare lists of objects in order; "" stands for none."""
    if not isinstance(right, list | str) or len(value) != len(right):
        return False
    return all(
        isinstance(one, dict) and isinstance(other, dict) and _same_object(one, other)
        for one, other in zip(value, right, strict=True)
    )


def _plain(value: Any) -> Any:
    """Return a text as it is compared: without regard to case, blanks and punctuation; anything else as it is."""
    return _LEFT_OUT.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
