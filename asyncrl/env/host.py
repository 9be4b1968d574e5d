"""Environment sessions inside this process: limits, deadlines, and errors sorted by whose fault they are."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from asyncrl.env.protocol import Action, Env, Step
from asyncrl.env.registry import load_env
from asyncrl.errors import ConflictError, DeadlineError, EnvironmentFailure, InputError, UnavailableError
from asyncrl.types import Message, Task

RESET_TIMEOUT_S = 60.0


class SessionGone(ConflictError):
    """The session was closed, reaped or ended by an error."""


@dataclass(slots=True)
class HostedSession:
    """One live environment."""

    id: str
    env: Env
    messages: list[Message]
    expires: float
    next_index: int = 0
    last: Step | None = None
    """Answer to step `next_index - 1`, repeated when that step is asked again."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class EnvHost:
    """Owns sessions. A step may be repeated; a client that goes away has its session reaped."""

    def __init__(self, max_sessions: int = 1024, lease_s: float = 120.0) -> None:
        self.max_sessions = max_sessions
        self.lease_s = lease_s
        self.sessions: dict[str, HostedSession] = {}
        self.opened = self.reaped = self.failed = self.steps = 0
        self._keys: dict[str, str] = {}

    async def open(self, task: Task, config: dict[str, Any], key: str = "") -> HostedSession:
        """Create a session and reset it. A repeated `key` returns the session it made.

        Raises `UnavailableError` when full, `InputError` for a wrong configuration, `EnvironmentFailure` when the
        environment raises.
        """
        if key and (known := self._keys.get(key)) in self.sessions:
            return self.sessions[known]  # type: ignore[index]
        if len(self.sessions) >= self.max_sessions:
            raise UnavailableError(
                f"all {self.max_sessions} environment sessions are in use", retry_after_s=1.0
            )
        env_class = load_env(task.env)
        try:
            env = env_class(task, **config)
        except (TypeError, ValueError) as error:
            raise InputError(f"env.config: environment {task.env!r} refuses {config!r}: {error}") from error
        except Exception as error:
            raise _failure(task.env, "construction", error) from error
        session = HostedSession(uuid.uuid4().hex, env, [], time.monotonic() + self.lease_s)
        self.sessions[session.id] = session
        self.opened += 1
        if key:
            self._keys[key] = session.id
        try:
            session.messages = list(await self._call(env, "reset", env.reset, RESET_TIMEOUT_S))
        except BaseException:
            await self.close(session.id)
            raise
        return session

    async def step(self, session_id: str, index: int, action: Action, timeout_s: float) -> Step:
        """Advance a session by step `index`.

        The index before the next returns the cached answer. Raises `SessionGone`, `ConflictError` (wrong index),
        `DeadlineError` and `EnvironmentFailure`; the last two end the session.
        """
        session = self._find(session_id)
        async with session.lock:
            if index == session.next_index - 1 and session.last is not None:
                return session.last
            if index != session.next_index:
                raise ConflictError(
                    f"session {session_id}: step_index must be {session.next_index}, got {index}"
                )
            try:
                step = await self._call(session.env, "step", lambda: session.env.step(action), timeout_s)
                if not isinstance(step, Step):
                    raise TypeError(f"step must return a Step, got {type(step).__name__}")
            except BaseException as error:
                self.failed += 1
                await self.close(session_id)
                if isinstance(error, TypeError):
                    raise _failure(session.env.task.env, "step", error) from error
                raise
            session.next_index, session.last = index + 1, step
            session.expires = time.monotonic() + self.lease_s
            self.steps += 1
            return step

    async def close(self, session_id: str) -> None:
        """End a session; ending it again is nothing. What its `close` raises is counted, not passed on."""
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        for key in [k for k, known in self._keys.items() if known == session_id]:
            del self._keys[key]
        try:
            await self._call(session.env, "close", session.env.close, RESET_TIMEOUT_S)
        except (EnvironmentFailure, DeadlineError):
            self.failed += 1

    def renew(self, session_id: str) -> float:
        """Keep a session alive without a step; return the seconds it has."""
        self._find(session_id).expires = time.monotonic() + self.lease_s
        return self.lease_s

    async def reap(self, every_s: float = 1.0) -> None:
        """End sessions whose client is gone, for ever."""
        while True:
            await asyncio.sleep(every_s)
            now = time.monotonic()
            for session in [s for s in self.sessions.values() if s.expires < now and not s.lock.locked()]:
                self.reaped += 1
                await self.close(session.id)

    async def close_all(self) -> None:
        """End every session."""
        for session_id in list(self.sessions):
            await self.close(session_id)

    def _find(self, session_id: str) -> HostedSession:
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionGone(f"session {session_id} has ended")
        return session

    async def _call(self, env: Env, what: str, method: Callable[[], Any], timeout_s: float) -> Any:
        """Call a method of an environment wherever it may run, under a deadline."""
        try:
            if not env.blocking and not inspect.iscoroutinefunction(getattr(env, what)):
                return method()
            async with asyncio.timeout(timeout_s):
                if inspect.iscoroutinefunction(getattr(env, what)):
                    return await method()
                result = await asyncio.to_thread(method)
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as error:
            raise DeadlineError(
                f"environment {env.task.env!r}: {what} took longer than {timeout_s:g} s"
            ) from error
        except Exception as error:
            raise _failure(env.task.env, what, error) from error


def _failure(name: str, what: str, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(f"environment {name!r}: {what} raised {type(error).__name__}: {error}")
