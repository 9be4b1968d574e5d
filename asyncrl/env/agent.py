"""Tasks for an agent of one's own (`env.name = "agent"`), which the rollout worker runs against its gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from asyncrl.env.protocol import Env
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task


class AgentTasks(Env):
    """An agent that plays its own episodes: a command or a Python callable."""

    @classmethod
    def tasks(cls, split: str, env: str, **config: Any) -> Iterator[Task]:
        """Yield the tasks of the environment `config["tasks"]` (its settings: `config["task_config"]`), or numbered
        seeds. Where the tasks are a file, `env.task_file` comes first."""
        source = config.get("tasks", "")
        if not source:
            yield from super().tasks(split, env)
            return
        from asyncrl.env.registry import load_env

        for task in load_env(source).tasks(split, source, **config.get("task_config", {})):
            yield replace(task, env=env)

    def reset(self) -> list[Message]:
        raise ConfigError(
            "env.name: agents play in the rollout worker; the environment service has no sessions for them"
        )
