"""What is wrong with a configuration, in words of its keys and values."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from asyncrl.config_sections import Section

KINDS = {
    str: "a text",
    dict: "a table",
    list: "a list",
    bool: "true or false",
    int: "a number",
    float: "a number",
}


def explain_problems(problems: Sequence[Any], root: type[Section]) -> dict[tuple[Any, ...], str]:
    """Return one line, with key, value and what is allowed, for each place where pydantic has found a problem.

    Of a key that takes several kinds of values pydantic tells why the value is none of the first, none of the second,
    and so on; what is told here is the problem that it got furthest with.
    """
    found: dict[tuple[Any, ...], str] = {}
    several: dict[tuple[Any, ...], list[Any]] = {}
    for problem in problems:
        place = tuple(problem["loc"])
        depth, _ = _union_in(place, root)
        if depth and len(place) > depth:
            several.setdefault(place[:depth], []).append(problem)
        else:
            found[place] = _explained(problem, place, root)
    for alike in several.values():
        furthest = max(len(problem["loc"]) for problem in alike)
        places: dict[tuple[Any, ...], list[Any]] = {}
        for problem in alike:
            if len(problem["loc"]) == furthest:
                places.setdefault(tuple(_without_kinds(problem["loc"], root)), []).append(problem)
        for place, same in places.items():
            # One that is not about the kind is told of a value of the right kind.
            fitting = [one for one in same if not one["type"].endswith(("_type", "literal_error"))]
            several_kinds = len(same) > 1 and not fitting
            found[place] = (
                _of_no_kind(place, same[0], root)
                if several_kinds
                else _explained((fitting or same)[0], place, root)
            )
    return found


def _explained(problem: Any, place: Sequence[Any], root: type[Section]) -> str:
    """place: the problem's, as people write it."""
    key = ".".join(str(part) for part in place)
    if problem["type"] == "extra_forbidden":
        known = _fields_at(problem["loc"][:-1], root)
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{key}: unknown key; {hint}allowed: {', '.join(known)}"
    if problem["type"] == "missing":
        return f"{key}: missing; it must be given"
    if problem["type"] in ("model_type", "dict_type"):
        return f"{key}: must be a table, got {json.dumps(problem['input'], default=str)}"
    message = problem["msg"].removeprefix("Value error, ")
    if not key:
        return message
    return f"{key}: {message[0].lower()}{message[1:]}, got {json.dumps(problem['input'], default=str)}"


def _of_no_kind(place: Sequence[Any], problem: Any, root: type[Section]) -> str:
    depth, members = _union_in(problem["loc"], root)
    if len(place) > depth:
        members = [kind for member in members for kind in _inner(member)]
    kinds = " or ".join(dict.fromkeys(map(_kind, members)))
    return f"{'.'.join(map(str, place))}: must be {kinds}, got {json.dumps(problem['input'], default=str)}"


def _kind(member: Any) -> str:
    if isinstance(member, type) and issubclass(member, Section):
        return f"a table of {', '.join(member.model_fields)}"
    if get_origin(member) is Annotated:
        member = get_args(member)[0]
    if get_origin(member) is Literal:
        return " or ".join(map(repr, get_args(member)))
    return KINDS.get(get_origin(member) or member, str(member))


def _union_in(place: Sequence[Any], root: type[Section]) -> tuple[int, list[Any]]:
    """Return how many parts of a place lead to a key that takes several kinds of values, with these; 0 for none."""
    section: Any = root
    for depth, part in enumerate(place, 1):
        fields = getattr(section, "model_fields", {})
        if part not in fields:
            # Inside a table whose names are free, such as `policies`.
            return 0, []
        section = fields[part].annotation
        if members := _members(section):
            return depth, members
    return 0, []


def _members(annotation: Any) -> list[Any]:
    """Return the kinds of values of a union, without None; none of anything else, or of a single kind."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return []
    members = [one for one in get_args(annotation) if one is not type(None)]
    return members if len(members) > 1 else []


def _without_kinds(place: Sequence[Any], root: type[Section]) -> list[Any]:
    """Return a place without the names that pydantic puts there for the kinds of a union."""
    depth, members = _union_in(place, root)
    named = {
        one.__name__ for one in (*members, *(a for m in members for a in _inner(m))) if isinstance(one, type)
    }
    return [
        part
        for number, part in enumerate(place)
        if number < depth
        or not (number == depth or part in named or str(part).startswith(("list[", "dict[")))
    ]


def _inner(member: Any) -> list[Any]:
    """Return the kinds of a list's items."""
    return [kind for one in get_args(member) for kind in (_members(one) or [one])]


def _fields_at(parents: Sequence[Any], root: type[Section]) -> list[str]:
    depth, members = _union_in(parents, root)
    if depth:
        inside = [
            one
            for one in (*members, *(a for m in members for a in _inner(m)))
            if getattr(one, "__name__", "")
        ]
        return list(next(one for one in inside if one.__name__ == parents[-1]).model_fields)
    section: Any = root
    for parent in parents:
        # Of a table whose names are free, such as `policies`, the kind of each of its values.
        free = get_origin(section) is dict
        section = get_args(section)[1] if free else section.model_fields[str(parent)].annotation
    return list(section.model_fields)
