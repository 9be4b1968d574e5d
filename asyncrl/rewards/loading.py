"""Finds the reward that a configuration names."""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.table import Row, by_name, rows
from asyncrl.import_path import top_level_names
from asyncrl.rewards.protocol import Reward

SEAM = "rewards"
"""Each row is a class of `protocol.Reward`, made without an argument, or with what follows its name. It raises
`ValueError` where that is wrong."""
FUNCTIONS = "my.py:function, my_pkg.module:function"
KEYS = ("name", "weight", "timeout_s")
"""The keys of a table in a list. `timeout_s` is for a function of your own."""


def load_reward(spec: str | Sequence[str | Mapping[str, Any]], *, key: str = "data.reward") -> Reward:
    """Return the reward that `spec` names.

    spec: the name of one that an extension adds (`rewards`, `asyncrl/extensions/table.py`), where it takes an argument
    with that, as in "regex:PATTERN"; an import path of a function; or a list of these, each a text or a table with
    `name`, `weight` (1 where it is left out) and `timeout_s`. key: the setting, for errors. Raises `ConfigError`.
    """
    if isinstance(spec, str):
        return _named(spec, key, None, may_skip=False)
    if isinstance(spec, Mapping):
        spec = [spec]
    if not isinstance(spec, Sequence) or not spec:
        raise ConfigError(f"{key}: must name a reward, got {spec!r}; allowed: {allowed()}")
    from asyncrl.rewards.weighted import Weighted

    parts: list[tuple[str, Reward, float]] = []
    for place, one in enumerate(spec):
        where = f"{key}[{place}]"
        table: Mapping[str, Any] = {"name": one} if isinstance(one, str) else one
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            raise ConfigError(f"{where}: must be a text or a table with a name, got {one!r}")
        if unknown := sorted(set(table) - set(KEYS)):
            raise ConfigError(f"{where}: unknown key {unknown[0]!r}; allowed: {', '.join(KEYS)}")
        weight = _number(table.get("weight", 1.0), f"{where}.weight")
        reward = _named(table["name"], where, table.get("timeout_s"), may_skip=len(spec) > 1)
        name = str(getattr(reward, "name", table["name"]))
        while name in (taken for taken, _, _ in parts):
            name = (
                f"{getattr(reward, 'name', table['name'])}_{sum(n.startswith(name) for n, _, _ in parts) + 1}"
            )
        parts.append((name, reward, weight))
    return Weighted(parts)


def allowed() -> str:
    """Return what may name a reward, for errors."""
    named = (f"{row.name}:{row.argument}" if row.argument else row.name for row in rows(SEAM))
    return ", ".join((*named, FUNCTIONS, "or a list of these with weights"))


def _names() -> list[str]:
    return [row.name for row in rows(SEAM) if not row.argument]


def _row(name: str) -> tuple[Row | None, tuple[str, ...]]:
    """Return what an extension adds by a name, None for a name that is none, and what its class is given."""
    first, colon, argument = name.partition(":")
    row = by_name(SEAM).get(first)
    if row is None or bool(colon) != bool(row.argument):
        return None, ()
    return row, (argument,) if colon else ()


def _named(name: str, key: str, timeout_s: Any, may_skip: bool) -> Reward:
    row, given = _row(name)
    if row is not None:
        if timeout_s is not None:
            raise ConfigError(
                f"{key}.timeout_s: is for a function of your own; {name!r} has a limit of its own"
            )
        made = row.load()
        try:
            reward: Reward = made(*given)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}") from error
        return reward
    if ":" in name:
        from asyncrl.rewards.user_function import TIMEOUT_S, UserFunction

        limit = TIMEOUT_S if timeout_s is None else _number(timeout_s, f"{key}.timeout_s")
        if limit <= 0:
            raise ConfigError(f"{key}.timeout_s: must be above 0, got {timeout_s!r}")
        return UserFunction(name, key, limit, may_skip)
    raise ConfigError(f"{key}: unknown reward {name!r}{_meant(name)}; allowed: {allowed()}")


def _meant(name: str) -> str:
    """Return what somebody may have meant by a name that is none, "" for no idea."""
    if name.endswith(".py"):
        there: list[str] = []
        with contextlib.suppress(ConfigError):
            there = [
                one
                for one, node in top_level_names("data.reward", name).items()
                if isinstance(node, ast.FunctionDef)
            ]
        return f"; a function in a file is FILE.py:FUNCTION{f', such as {name}:{there[0]}' if there else ''}"
    module, dot, function = name.rpartition(".")
    if dot and module.replace(".", "").isidentifier() and function.isidentifier():
        return f"; a function in a module is {module}:{function}"
    if "," in name:
        return f"; several are a list, {json.dumps(_names()[:2])}"
    close = difflib.get_close_matches(name, _names(), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{key}: must be a number, got {value!r}")
    return float(value)
