"""Tasks for a user's own agent (`env.name = "agent"`), which the rollout worker runs against its gateway."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Literal

from asyncrl.env.protocol import Action, Env
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task

AGENT = "agent"
"""The `env.name` of recipes whose episodes an agent plays."""


class AgentTasks(Env):
    """An agent that plays its own episodes: a harness, a command or a Python callable, or one elsewhere that asks for
    them (`offered`).

    `config["tasks"]` names the environment whose tasks it gets, or a folder of task folders, with the settings
    `config["task_config"]`; without it tasks are numbered seeds. That environment's scripted policies also provide
    the supervised start. Training and evaluation never step it: what to do with a task is up to the agent.
    """

    def __init__(
        self,
        task: Task,
        command: list[str] | None = None,
        callable: str = "",
        harness: str = "",
        offered: bool = False,
        sandbox: str = "auto",
        environment: dict[str, str] | None = None,
        cwd: str = "",
        gateway: str = "",
        gateway_host: str = "",
        gateway_advertise: str = "",
        tasks: str = "",
        task_config: dict[str, Any] | None = None,
        max_running: int = 0,
        max_trajectories: int = 0,
        response_format: Literal["ignore", "refuse"] = "ignore",
    ) -> None:
        super().__init__(task)
        if not tasks:
            raise ConfigError(
                'env.config.tasks: needed where an agent\'s tasks are played without it, as in "sft"'
            )
        name, settings = source_of(tasks, task_config)
        self.played = _load(name)(replace(task, env=name), **settings)
        self.max_turns = self.played.max_turns
        self.tools = self.played.tools  # type: ignore[misc]

    @classmethod
    def inner(
        cls, tasks: str = "", task_config: dict[str, Any] | None = None, **agent: Any
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield key, name and settings of the environment whose tasks it gets."""
        if tasks:
            name, settings = source_of(tasks, task_config)
            _load(name)
            yield "task_config", name, settings

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield the tasks of a split, in a fixed order."""
        if not config.get("tasks"):
            yield from super().tasks(split, env)
            return
        name, settings = source_of(config["tasks"], config.get("task_config"))
        for task in _load(name).tasks(split, name, **settings):
            yield replace(task, env=env)

    def reset(self) -> Any:
        return self.played.reset()

    def step(self, action: Action) -> Any:
        return self.played.step(action)

    def close(self) -> Any:
        return self.played.close()

    def oracle(self, messages: list[Message]) -> Message:
        return self.played.oracle(messages)

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        return self.played.random_policy(messages, rng)


def source_of(tasks: str, task_config: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    """Return name and settings of the environment whose tasks an agent gets: `tasks` names it, or a folder of task
    folders, which are `terminal`'s."""
    settings = dict(task_config or {})
    if ":" not in tasks and (os.sep in tasks or tasks in (".", "..")):
        return "terminal", {"folder": tasks, **settings}
    return tasks, settings


def _load(name: str) -> type[Env]:
    from asyncrl.env.registry import load_env

    return load_env(name, "env.config.tasks")
