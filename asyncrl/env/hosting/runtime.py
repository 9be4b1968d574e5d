"""The interface of what runs sessions, and the runtime for this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from asyncrl.env.hosting.calls import EnvCalls
from asyncrl.env.hosting.failures import check_messages, check_step, sort_failure
from asyncrl.env.protocol import Action, Env, Step, least_step_s_of
from asyncrl.env.registry import load_env
from asyncrl.env.tool_schemas import check_tools
from asyncrl.errors import AgentError, ConfigError, DeadlineError, EnvironmentFailure
from asyncrl.types import Message, Task

RESET_TIMEOUT_S = 60.0
"""Limit on construction and on `reset`, each."""
CLOSE_TIMEOUT_S = 30.0
HELPERS = 64
"""Helper threads for asynchronous environments; started as needed."""

OnLost = Callable[[Iterable[str], str], None]


@dataclass(frozen=True, slots=True)
class Opened:
    """A session that is ready for its first step."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    max_turns: int
    least_step_s: float = 0.0
    """What a step must be given, see `Env.least_step_s`."""
    env: Env | None = None
    """Where it runs in this process."""


class Runtime(Protocol):
    """Runs sessions; counting, leases and repeated calls are the host's."""

    on_lost: OnLost
    """Called with sessions that were lost without being closed, and the reason."""

    @property
    def overrun(self) -> int: ...
    async def start(self) -> None: ...
    async def open(self, session_id: str, task: Task, config: dict[str, Any]) -> Opened: ...
    async def step(self, session_id: str, action: Action, timeout_s: float) -> Step: ...
    async def close(self, session_id: str) -> None: ...
    async def stop(self) -> None: ...


class LocalRuntime:
    """Sessions in this process."""

    def __init__(self) -> None:
        self.on_lost: OnLost = lambda sessions, why: None
        self.overrun = 0
        """Calls that have exceeded their deadline and still occupy a thread."""
        self._calls: dict[str, EnvCalls] = {}
        self._classes: dict[str, type[Env]] = {}
        self._closing: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Give coroutines that use `asyncio.to_thread` more threads than the event loop's default."""
        helpers = ThreadPoolExecutor(HELPERS, "env helper")
        asyncio.get_running_loop().set_default_executor(helpers)

    async def open(self, session_id: str, task: Task, config: dict[str, Any]) -> Opened:
        """Create an environment and reset it.

        Raises `ConfigError` for an unknown environment, `InputError` for a configuration it refuses,
        `DeadlineError` and `EpisodeError`. A session that does not open is closed again.
        """
        calls = EnvCalls(await self._load(task.env), task.env, self._count_overrun)
        self._calls[session_id] = calls
        try:
            await calls.construct(task, config, RESET_TIMEOUT_S)
            messages = await calls.call("reset", RESET_TIMEOUT_S)
            try:
                messages = check_messages(messages, "reset")
            except TypeError as error:
                raise sort_failure(task.env, "reset", error) from error
            try:
                tools = check_tools(calls.env.tools)
            except ValueError as error:
                raise EnvironmentFailure(f"environment {task.env!r}: {error}") from error
        except BaseException as error:
            closing = asyncio.ensure_future(self.close(session_id))
            self._closing.add(closing)
            closing.add_done_callback(self._closed)
            # After an overrun the close waits behind a stuck thread; the caller does not.
            if not isinstance(error, DeadlineError):
                await asyncio.wait({closing})
            raise
        env = calls.env
        return Opened(messages, tools, env.max_turns, least_step_s_of(env), env)

    async def step(self, session_id: str, action: Action, timeout_s: float) -> Step:
        """Advance a session. Raises `DeadlineError` and `EpisodeError`, after which it should be closed.

        An `AgentError` of the environment becomes the last step, without reward.
        """
        calls = self._calls[session_id]
        try:
            step = await calls.call("step", timeout_s, action)
        except AgentError as error:
            message = {"role": "user", "content": str(error)}
            return Step([message], done=True, success=False, components={"agent_error": 1.0})
        try:
            return check_step(step)
        except (TypeError, ValueError, AttributeError) as error:
            raise sort_failure(calls.name, "step", error) from error

    async def close(self, session_id: str) -> None:
        """End a session, if it exists. Raises the exceptions of its `close`, classified."""
        calls = self._calls.pop(session_id, None)
        if calls is not None:
            await calls.close(CLOSE_TIMEOUT_S)

    async def stop(self) -> None:
        """End every session."""
        await asyncio.gather(*(self.close(session) for session in list(self._calls)), return_exceptions=True)

    def _count_overrun(self, change: int) -> None:
        self.overrun += change

    async def _load(self, name: str) -> type[Env]:
        """Return an environment's class; imported once, and outside the event loop, since that can take seconds."""
        if name not in self._classes:
            try:
                self._classes[name] = await asyncio.to_thread(load_env, name)
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    f"env.name: {name!r} cannot be imported: {type(error).__name__}: {error}"
                ) from error
        return self._classes[name]

    def _closed(self, closing: asyncio.Future[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()
