"""An environment around another one: it plays that one's tasks and changes what their episodes are."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from asyncrl.env.protocol import Env, least_step_s_of, secrets_of
from asyncrl.env.registry import load_played
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task

Given = TypeVar("Given")
Made = TypeVar("Made")


class Wrapper(Env):
    """Base of environments around another one: `tasks` is its name, `task_config` its settings.

    Attribute `played` is its session. Raises `ConfigError` where it is not named.
    """

    def __init__(self, task: Task, tasks: str = "", task_config: dict[str, Any] | None = None) -> None:
        super().__init__(task)
        inner, config = self.inner_task(task, tasks, task_config)
        self.played = _class_of(inner.env)(inner, **config)
        self.blocking = self.played.blocking  # type: ignore[misc]
        self.adopt()

    def adopt(self) -> None:
        """Take over what the other environment may set only when it is opened: its turns and tools."""
        self.max_turns, self.tools = self.played.max_turns, self.played.tools  # type: ignore[misc]

    def opened(self, messages: list[Message]) -> list[Message]:
        """Return the opening messages, given those of the other environment."""
        self.adopt()
        return messages

    @classmethod
    def tasks(
        cls, split: str, env: str, tasks: str = "", task_config: dict[str, Any] | None = None, **config: Any
    ) -> Iterator[Task]:
        """Yield the other environment's tasks."""
        for task in _class_of(tasks).tasks(split, tasks, **task_config or {}):
            yield replace(task, env=env)

    @classmethod
    def inner_task(
        cls, task: Task, tasks: str = "", task_config: dict[str, Any] | None = None, **config: Any
    ) -> tuple[Task, dict[str, Any]]:
        """Return the other environment's task and settings."""
        return replace(task, env=tasks), dict(task_config or {})

    @classmethod
    def inner(
        cls, tasks: str = "", task_config: dict[str, Any] | None = None, **config: Any
    ) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield key, name and settings of the other environment, to be checked before a run starts."""
        _class_of(tasks)
        yield "task_config", tasks, dict(task_config or {})

    @classmethod
    def missing(cls) -> str:
        """Return what prevents it from starting without settings."""
        return "settings: tasks"

    def least_step_s(self) -> float:
        return least_step_s_of(self.played)

    def reset(self) -> list[Message] | Awaitable[list[Message]]:
        return then(self.played.reset(), self.opened)

    def close(self) -> Any:
        return self.played.close()

    def secrets(self) -> tuple[str, ...]:
        """Return texts that no observation may contain before the episode is over."""
        return secrets_of(self.played)


def then(given: Given | Awaitable[Given], make: Callable[[Given], Made]) -> Made | Awaitable[Made]:
    """Return `make` of what is given, or a coroutine of it where that is awaited: methods of an environment may be
    plain or `async`."""
    if not inspect.isawaitable(given):
        return make(given)

    async def later() -> Made:
        return make(await given)

    return later()


def _class_of(tasks: str) -> type[Env]:
    if not tasks:
        raise ConfigError(
            'env.config.tasks: must name the environment that is played, such as "countdown_several"'
        )
    return load_played(tasks, "env.config.tasks")
