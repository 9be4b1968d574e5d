"""Finds the reward that a configuration names."""

from __future__ import annotations

import ast
import contextlib
import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.import_path import top_level_names
from asyncrl.rewards.protocol import Reward

NAMES = ("math", "exact", "choice", "code", "ifeval")
REGEX = "regex:"
ALLOWED = f"{', '.join(NAMES)}, {REGEX}PATTERN, my.py:function, my_pkg.module:function, or a list of these with weights"
KEYS = ("name", "weight", "timeout_s")
"""The keys of a table in a list. `timeout_s` is for a function of your own."""


def load_reward(spec: str | Sequence[str | Mapping[str, Any]], *, key: str = "data.reward") -> Reward:
    """Return the reward that `spec` names.

    spec: a name of `NAMES`, "regex:PATTERN", an import path of a function, or a list of these, each a text or a table
    with `name`, `weight` (1 where it is left out) and `timeout_s`. key: the setting, for errors. Raises `ConfigError`.
    """
    if isinstance(spec, str):
        return _named(spec, key, None, may_skip=False)
    if isinstance(spec, Mapping):
        spec = [spec]
    if not isinstance(spec, Sequence) or not spec:
        raise ConfigError(f"{key}: must name a reward, got {spec!r}; allowed: {ALLOWED}")
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


def _named(name: str, key: str, timeout_s: Any, may_skip: bool) -> Reward:
    if timeout_s is not None and (name in NAMES or name.startswith(REGEX)):
        raise ConfigError(f"{key}.timeout_s: is for a function of your own; {name!r} has a limit of its own")
    if name == "math":
        from asyncrl.rewards.math_reward import MathReward

        return MathReward()
    if name in ("exact", "choice"):
        from asyncrl.rewards.text_rewards import Choice, Exact

        return Exact() if name == "exact" else Choice()
    if name == "code":
        from asyncrl.rewards.code_reward import CodeReward

        return CodeReward()
    if name == "ifeval":
        from asyncrl.rewards.ifeval import InstructionFollowing

        return InstructionFollowing()
    if name.startswith(REGEX):
        return _pattern(name.removeprefix(REGEX), key)
    if ":" in name:
        from asyncrl.rewards.user_function import TIMEOUT_S, UserFunction

        limit = TIMEOUT_S if timeout_s is None else _number(timeout_s, f"{key}.timeout_s")
        if limit <= 0:
            raise ConfigError(f"{key}.timeout_s: must be above 0, got {timeout_s!r}")
        return UserFunction(name, key, limit, may_skip)
    raise ConfigError(f"{key}: unknown reward {name!r}{_meant(name)}; allowed: {ALLOWED}")


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
        return '; several are a list, ["math", "exact"]'
    close = difflib.get_close_matches(name, NAMES, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _pattern(pattern: str, key: str) -> Reward:
    import regex

    from asyncrl.rewards.text_rewards import Pattern

    try:
        return Pattern(pattern)
    except regex.error as error:
        raise ConfigError(f"{key}: {pattern!r} is no regular expression: {error}") from error


def _number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{key}: must be a number, got {value!r}")
    return float(value)
