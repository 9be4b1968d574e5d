"""Finds the reward that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.rewards.protocol import Reward

NAMES = ("math", "exact", "choice", "code", "ifeval")
REGEX = "regex:"
ALLOWED = f"{', '.join(NAMES)}, {REGEX}PATTERN, my.py:function, my_pkg.module:function, or a list of these with weights"


def load_reward(spec: str | Sequence[str | Mapping[str, Any]], *, key: str = "data.reward") -> Reward:
    """Return the reward that `spec` names.

    spec: a name of `NAMES`, "regex:PATTERN", an import path of a function, or a list of these, each a text or a table
    with `name` and `weight` (1 where it is left out). key: the setting, for errors. Raises `ConfigError`.
    """
    raise ConfigError(f"{key}: unknown reward {spec!r}; allowed: {ALLOWED}")
