"""Environment sessions: limits, leases, repeated calls and errors. A runtime runs them, here or in worker
processes."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from asyncrl.env.hosting.failures import known_class
from asyncrl.env.hosting.places import NoPlace, Places
from asyncrl.env.hosting.runtime import LocalRuntime, Opened, Runtime
from asyncrl.env.protocol import Action, Env, Step
from asyncrl.env.registry import names_inside
from asyncrl.errors import (
    AsyncRLError,
    ConfigError,
    ConflictError,
    DeadlineError,
    EpisodeError,
    InfrastructureError,
    InputError,
)
from asyncrl.types import Message, Task

REMEMBERED = 16384
"""Number of ended sessions whose reason is kept for late calls."""
STOP_TIMEOUT_S = 5.0
LAUNCHER = "asyncrl.sandbox.jail.client"


class SessionGone(ConflictError):
    """The session was closed, reaped or ended by an error."""


@dataclass(slots=True)
class HostedSession:
    """One live environment."""

    id: str
    names: tuple[str, ...]
    """The names it counts under for the limits: its environment, and those that play inside it."""
    opened: Opened
    expires: float
    key: str = ""
    next_index: int = 0
    last: Step | None = None
    """Answer to step `next_index - 1`, returned again if that step is repeated."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def messages(self) -> list[Message]:
        return self.opened.messages

    def step_limit_s(self, usual_s: float) -> float:
        """Return the limit of a step for those who have no recipe: what they usually give, or what the environment
        needs where that is more."""
        return max(usual_s, self.opened.least_step_s)

    @property
    def env(self) -> Env:
        """The environment itself. Only where it runs in this process."""
        assert self.opened.env is not None
        return self.opened.env


@dataclass(slots=True)
class HostCounts:
    """Counters since the host's start."""

    opened: int = 0
    steps: int = 0
    failed: int = 0
    """Sessions ended by an error."""
    lost: int = 0
    """Sessions lost with a worker."""
    reaped: int = 0
    rejected: int = 0
    """Calls to open that got no place within their waiting time."""
    close_failed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """By class: agent, environment, infrastructure, deadline, other."""


class EnvHost:
    """Owns sessions. A step may be repeated; the session of a client that disappears is closed.

    max_sessions: sessions at once. limits: the same per environment, by the name in a task, also for environments that
    play inside another one.
    lease_s: how long a session lives without a call; clients renew their sessions between steps.
    served: the environments that may be opened and the configuration of each; None for any, if only this process can
    call.
    """

    def __init__(
        self,
        max_sessions: int = 1024,
        lease_s: float = 120.0,
        limits: Mapping[str, int] | None = None,
        runtime: Runtime | None = None,
        served: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.lease_s = lease_s
        self.served = served
        self.places = Places(max_sessions, limits or {})
        self.runtime: Runtime = runtime or LocalRuntime()
        self.runtime.on_lost = self._lose
        self.sessions: dict[str, HostedSession] = {}
        self.counts = HostCounts()
        self._openings: dict[str, tuple[Task, asyncio.Task[HostedSession]]] = {}
        self._ended: OrderedDict[str, tuple[int | None, AsyncRLError]] = OrderedDict()
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> Counter[str]:
        """Sessions that are opening, open or closing, by environment; the limits apply to these."""
        return self.places.held

    async def open(
        self, task: Task, config: dict[str, Any], key: str = "", wait_s: float = 0.0
    ) -> HostedSession:
        """Create a session and reset it. A repeated `key` returns the same session.

        wait_s: how long to wait for a place. Raises `NoPlace` if there is none, `ConfigError` for an unknown
        environment, `InputError` for a configuration it refuses, `ConflictError` for a key that belongs to a session
        of another task, `DeadlineError`, and `EpisodeError` if the environment or its worker fails.
        """
        config = self._allowed(task.env, config)
        if not key:
            return await self._open(task, config, key, wait_s)
        first, opening = self._openings.get(key, (task, None))
        if opening is None:
            opening = asyncio.create_task(self._open(task, config, key, wait_s))
            self._openings[key] = task, opening
            opening.add_done_callback(partial(self._forget_failed, key))
        elif first != task:
            raise ConflictError(
                f"idempotency key {key[:64]!r} belongs to a session of task {first.id[:64]!r}"
            )
        # A caller that waits may disconnect; the others still get the session.
        return await asyncio.shield(opening)

    def _allowed(self, name: str, config: dict[str, Any]) -> dict[str, Any]:
        """Return the configuration of a session. Callers name a task only; code and settings are the service's.

        Raises `ConfigError` for an environment that is not served, `InputError` for settings that are not its own.
        """
        if self.served is None:
            return config
        if name not in self.served:
            raise ConfigError(
                f"env.name: {name[:200]!r} is not served here; allowed: {', '.join(sorted(self.served))}; "
                "start the service with the recipe that names it"
            )
        own = self.served[name]
        if config and (wrong := sorted(k for k in {*config, *own} if config.get(k) != own.get(k))):
            raise InputError(
                f"env.config.{wrong[0][:64]}: is the service's to set, which was started with another value; "
                "leave config out, or start the service with the recipe that has it"
            )
        return dict(own)

    async def step(self, session_id: str, index: int, action: Action, timeout_s: float) -> Step:
        """Advance a session by step `index`.

        The index before the next returns the cached answer. Raises `SessionGone`, `ConflictError` (wrong index),
        `DeadlineError` and `EpisodeError`; the last two end the session.
        """
        session = self._find(session_id, index)
        async with session.lock:
            self._find(session_id, index)
            if index == session.next_index - 1 and session.last is not None:
                return session.last
            if index != session.next_index:
                raise ConflictError(
                    f"session {session_id}: step_index must be {session.next_index}, got {index}"
                )
            try:
                step = await self.runtime.step(session_id, action, timeout_s)
            except BaseException as error:
                self._fail(session, index, error)
                raise
            session.next_index, session.last = index + 1, step
            session.expires = time.monotonic() + self.lease_s
            self.counts.steps += 1
            return step

    async def close(self, session_id: str) -> None:
        """End a session; ending it again does nothing. Exceptions of its `close` are counted, not raised.

        A running step may finish, within its own deadline; the caller does not wait for it.
        """
        session = self.sessions.get(session_id)
        if session is None:
            return
        stepping = session.lock.locked()
        ending = self._end(session, None, SessionGone(f"session {session_id} has ended: it was closed"))
        if not stepping:
            await asyncio.shield(ending)

    def abandon(self, key: str) -> None:
        """Close the session that was opened with `key`, as soon as it is open, if there is one.

        For callers that give up opening it and so never learn the session's id.
        """
        _, opening = self._openings.get(key, (None, None))
        if opening is not None:
            opening.add_done_callback(self._close_opened)

    def renew(self, session_id: str) -> float:
        """Keep a session alive without a step; return the seconds until it expires."""
        self._find(session_id).expires = time.monotonic() + self.lease_s
        return self.lease_s

    def renew_all(self, session_ids: Iterable[str]) -> list[str]:
        """Keep sessions alive without a step; return those that have ended or never existed."""
        expires, gone = time.monotonic() + self.lease_s, []
        for session_id in session_ids:
            session = self.sessions.get(session_id)
            if session is None:
                gone.append(session_id)
            else:
                session.expires = expires
        return gone

    def show(self, session_id: str) -> HostedSession:
        """Return a live session. Raises as `renew` does."""
        return self._find(session_id)

    async def reap(self, every_s: float = 1.0) -> None:
        """Close the sessions of clients that are gone, forever."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(every_s)
            now = time.monotonic()
            if (pause_s := now - looked - every_s) > every_s:
                # This loop was blocked, so renewals that arrived in time have not been read yet.
                for session in self.sessions.values():
                    session.expires += pause_s
            looked = now
            for session in [s for s in self.sessions.values() if s.expires < now and not s.lock.locked()]:
                self.counts.reaped += 1
                why = f"session {session.id} has ended: not renewed within its lease of {self.lease_s:g} s"
                self._end(session, None, SessionGone(why))

    async def start(self) -> None:
        """Start the runtime. Only worker processes need it."""
        await self.runtime.start()

    async def close_all(self) -> None:
        """End every session and the runtime; sessions that take longer than `STOP_TIMEOUT_S` are abandoned."""
        for session in list(self.sessions.values()):
            self._end(session, None, SessionGone(f"session {session.id} has ended: the service stops"))
        if self._endings:
            await asyncio.wait(self._endings, timeout=STOP_TIMEOUT_S)
        await self.runtime.stop()

    async def _open(self, task: Task, config: dict[str, Any], key: str, wait_s: float) -> HostedSession:
        names = await self._names(task, config)
        try:
            await self.places.take(names, key, wait_s)
        except NoPlace:
            self.counts.rejected += 1
            raise
        session_id = uuid.uuid4().hex
        try:
            opened = await self.runtime.open(session_id, task, config)
        except BaseException as error:
            self.places.give_back(names)
            self._count_failure(error)
            raise
        expires = time.monotonic() + self.lease_s
        session = HostedSession(session_id, names, opened, expires, key)
        self.sessions[session_id] = session
        self.counts.opened += 1
        return session

    async def _names(self, task: Task, config: dict[str, Any]) -> tuple[str, ...]:
        """Return the names that a session of the task counts under. Only limits need the environments that play
        inside."""
        if not self.places.limits:
            return (task.env,)
        return (task.env, *await asyncio.to_thread(names_inside, task, config))

    def _find(self, session_id: str, index: int | None = None) -> HostedSession:
        session = self.sessions.get(session_id)
        if session is not None:
            return session
        failed_index, error = self._ended.get(
            session_id, (None, SessionGone(f"session {session_id} has ended"))
        )
        if isinstance(error, SessionGone):
            raise SessionGone(str(error))
        if failed_index is None or failed_index == index:
            # The same error for a repetition of the step that ended it, or for a session lost with its worker.
            raise type(error)(str(error))
        raise SessionGone(f"session {session_id} has ended: {error}")

    def _fail(self, session: HostedSession, index: int, error: BaseException) -> None:
        self._count_failure(error)
        if session.id not in self.sessions:
            return
        self.counts.failed += 1
        reason = (
            error
            if isinstance(error, AsyncRLError)
            else InfrastructureError(f"the step was cut off: {error!r}")
        )
        self._end(session, index, reason)

    def _count_failure(self, error: BaseException) -> None:
        if isinstance(error, EpisodeError):
            self.counts.failures[error.failure] += 1
        elif isinstance(error, DeadlineError):
            self.counts.failures["deadline"] += 1
        elif not isinstance(error, AsyncRLError):
            self.counts.failures["other"] += 1

    def _lose(self, session_ids: Iterable[str], why: str) -> None:
        """Drop sessions whose worker is gone; their next call gets the reason."""
        for session_id in session_ids:
            session = self.sessions.get(session_id)
            if session is not None:
                self.counts.lost += 1
                self._end(session, None, InfrastructureError(f"session {session_id} is lost: {why}"))

    def _end(self, session: HostedSession, index: int | None, reason: AsyncRLError) -> asyncio.Task[None]:
        del self.sessions[session.id]
        self._openings.pop(session.key, None)
        self._ended[session.id] = (index, _bare(reason))
        while len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        ending = asyncio.create_task(self._close(session))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)
        return ending

    async def _close(self, session: HostedSession) -> None:
        """Close after the running step, then free the session's place."""
        try:
            async with session.lock:
                await self.runtime.close(session.id)
        except AsyncRLError:
            self.counts.close_failed += 1
        finally:
            self.places.give_back(session.names)

    def _close_opened(self, opening: asyncio.Task[HostedSession]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            return
        session = opening.result()
        if session.id in self.sessions:
            self._end(session, None, SessionGone(f"session {session.id} has ended: its open was given up"))

    def _forget_failed(self, key: str, opening: asyncio.Task[HostedSession]) -> None:
        if opening.cancelled() or opening.exception() is not None:
            self._openings.pop(key, None)


def _bare(error: AsyncRLError) -> AsyncRLError:
    """Return the error as our closest class, without its traceback, which would keep the environment in memory."""
    kind = SessionGone if isinstance(error, SessionGone) else known_class(error)
    return kind(str(error))


async def end_launcher() -> None:
    """End the sandbox launcher that environments of this event loop have used, if any."""
    if LAUNCHER in sys.modules:
        await sys.modules[LAUNCHER].LauncherClient.close_shared()
