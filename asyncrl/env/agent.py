"""Tasks for an agent of one's own (`env.name = "agent"`), which the rollout worker runs against its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asyncrl.env.protocol import Action, Env
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task


class AgentTasks(Env):
    """An agent that plays its own episodes: a command or a Python callable.

    `config["tasks"]` names the environment whose tasks it gets (with the settings `config["task_config"]`); without
    it they are numbered seeds. That environment's scripted policies also serve for a supervised start. Training and
    evaluation never step it: the agent does what it likes with a task.
    """

    def __init__(self, task: Task, **config: Any) -> None:
        super().__init__(task)
        source = config.get("tasks", "")
        if not source:
            raise ConfigError(
                'env.config.tasks: needed where an agent\'s tasks are played without it, as in "sft"'
            )
        self.inner = _load(source)(replace(task, env=source), **config.get("task_config", {}))
        self.max_turns = self.inner.max_turns
        self.tools = self.inner.tools  # type: ignore[misc]

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield the tasks of a split, in a fixed order."""
        source = config.get("tasks", "")
        if not source:
            yield from super().tasks(split, env)
            return
        for task in _load(source).tasks(split, source, **config.get("task_config", {})):
            yield replace(task, env=env)

    def reset(self) -> Any:
        return self.inner.reset()

    def step(self, action: Action) -> Any:
        return self.inner.step(action)

    def close(self) -> Any:
        return self.inner.close()

    def oracle(self, messages: list[Message]) -> Message:
        return self.inner.oracle(messages)

    def random_policy(self, messages: list[Message], rng: Any) -> Message:
        return self.inner.random_policy(messages, rng)


def _load(name: str) -> type[Env]:
    from asyncrl.env.registry import load_env

    return load_env(name)
