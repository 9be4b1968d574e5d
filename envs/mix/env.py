"""Several environments in one run, each with its share of the tasks.

    [env]
    name = "mix"
    config.parts.gridworld = { weight = 2 }
    config.parts.calculator = { weight = 1, config = { limit = 20 } }

Tasks are dealt in a fixed order that keeps every part within one task of its share at any time. Groups are trained in
the order of their deadlines, however long they take to play, so trained groups have the same shares as tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from asyncrl.env.parts import PART, in_part
from asyncrl.env.protocol import Action, Env, Step, secrets_of
from asyncrl.env.registry import load_env, load_played
from asyncrl.env.wrapper import then
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task


class Mix(Env):
    """Play several environments in one run; `parts` names them and their weights."""

    blocking: ClassVar[bool] = True

    def __init__(self, task: Task, parts: dict[str, Any] | None = None) -> None:
        super().__init__(task)
        self.part = task.data[PART]
        inner, config = self.inner_task(task, parts)
        self.env = load_env(inner.env)(inner, **config)
        self.max_turns = self.env.max_turns
        self.blocking = self.env.blocking  # type: ignore[misc]
        self.tools = self.env.tools  # type: ignore[misc]

    @classmethod
    def tasks(
        cls, split: str, env: str, parts: dict[str, Any] | None = None, **config: Any
    ) -> Iterator[Task]:
        """Deal the parts' tasks by weight; when a part has no more, the others get its share."""
        if config:
            raise ConfigError(f"env.config: mix takes only parts, got {', '.join(sorted(config))}")
        chosen = read_parts(parts)
        left = {part: load_env(name).tasks(split, name, **own) for part, (name, _, own) in chosen.items()}
        dealt = dict.fromkeys(left, 0)
        while left:
            part = min(left, key=lambda p: ((dealt[p] + 1) / chosen[p][1], p))
            task = next(left[part], None)
            if task is None:
                del left[part]
                continue
            dealt[part] += 1
            yield in_part(part, task, env)

    @classmethod
    def inner_task(cls, task: Task, parts: dict[str, Any] | None = None) -> tuple[Task, dict[str, Any]]:  # type: ignore[override]
        """Return the part's own task and settings."""
        name, _, config = read_parts(parts)[task.data[PART]]
        return replace(task, env=name, data=task.data["data"]), config

    @classmethod
    def inner(cls, parts: dict[str, Any] | None = None) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield key, environment and settings of each part, to be checked before a run starts."""
        for part, (name, _, config) in read_parts(parts).items():
            yield f"parts.{part}.config", name, config

    @classmethod
    def missing(cls) -> str:
        """Return what prevents it from starting without settings."""
        return "settings: parts"

    def reset(self) -> list[Message] | Awaitable[list[Message]]:
        return then(self.env.reset(), self._opened)

    def _opened(self, messages: list[Message]) -> list[Message]:
        self._adopt()
        return messages

    def _adopt(self) -> None:
        """Take over what the part sets only when it is opened."""
        self.max_turns, self.tools = self.env.max_turns, self.env.tools  # type: ignore[misc]

    def step(self, action: Action) -> Step | Awaitable[Step]:
        return self.env.step(action)

    def close(self) -> Awaitable[None] | None:
        return self.env.close()

    def oracle(self, messages: list[Message]) -> Message:
        return self.env.oracle(messages)

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return self.env.random_policy(messages, rng)

    def secrets(self) -> tuple[str, ...]:
        return secrets_of(self.env)


def read_parts(parts: dict[str, Any] | None) -> dict[str, tuple[str, float, dict[str, Any]]]:
    """Return `(environment, weight, configuration)` by part. Raises `ConfigError` naming what is wrong.

    A part has its environment's name unless `env` says otherwise, so one environment may occur in several
    configurations.
    """
    if not isinstance(parts, dict) or not parts:
        raise ConfigError(
            "env.config.parts: must name at least one part, such as parts.gridworld = { weight = 1 }"
        )
    found = {}
    for part, given in parts.items():
        where = f"env.config.parts.{part}"
        if not isinstance(given, dict) or set(given) - {"env", "weight", "config"}:
            raise ConfigError(f"{where}: must be a table of env, weight, config, got {given!r}")
        weight = given.get("weight", 1)
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise ConfigError(f"{where}.weight: must be a number above 0, got {weight!r}")
        name, config = given.get("env", part), given.get("config", {})
        if not isinstance(config, dict):
            raise ConfigError(f"{where}.config: must be a table, got {config!r}")
        load_played(name, f"{where}.env" if "env" in given else where)
        found[part] = (name, float(weight), config)
    return found
