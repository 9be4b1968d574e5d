"""Clients of environment services. Operations that become ready together are sent together."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from asyncrl.data.codec import task_to_map
from asyncrl.env.host import EnvHost, HostedSession
from asyncrl.env.hosting.failures import known_class
from asyncrl.env.protocol import Action, Step
from asyncrl.errors import AsyncRLError, ConfigError, InfrastructureError
from asyncrl.services.env.connection import RETRY_S, EnvServiceClient, Full, sorted_failure
from asyncrl.together import to_their_ends
from asyncrl.types import Message, Task

log = logging.getLogger("asyncrl.rollout")

OPEN_TIMEOUT_S = 90.0
"""Time limit of one open; it includes the wait for a worker, but not that for a place."""
PLACE_TIMEOUT_S = 900.0
"""How long an open waits while no place is freed at all: longer than any episode should take."""
WAIT_S = 10.0
"""How long one service may wait for a place before the next one is asked."""
TELL_EVERY_S = 60.0
LEAST_S = 0.1
"""With less time left than this, no further service is asked for a session."""
CLOSE_TIMEOUT_S = 60.0
MARGIN_S = 15.0
"""Added to the deadline of a step, which the service enforces itself."""


class EnvSession:
    """One open session on one service. Its lease is renewed until it is closed or garbage collected."""

    def __init__(self, service: EnvServiceClient, opened: dict[str, Any]) -> None:
        self._service = service
        self.id: str = opened["session_id"]
        self.messages: list[Message] = opened["messages"]
        self.tools: list[dict[str, Any]] = opened["tools"]
        self.max_turns: int = opened["max_turns"]
        self.least_step_s: float = opened["least_step_s"]
        service.leases.hold(self.id, self, opened["lease_s"])

    async def step(self, step_index: int, action: Action, timeout_s: float) -> Step:
        """Advance by one turn. Raises `EnvironmentFailure` or `InfrastructureError`."""
        operation = {
            "op": "step",
            "session": self.id,
            "step_index": step_index,
            "action": _action_to_map(action),
            "timeout_s": timeout_s,
        }
        return Step(**await self._service.operate(operation, timeout_s + MARGIN_S))

    async def close(self) -> None:
        """End the session. Raises `InfrastructureError` when the service cannot be reached, which then expires it."""
        self._service.leases.drop(self.id)
        await self._service.operate({"op": "close", "session": self.id}, CLOSE_TIMEOUT_S)


class EnvClient:
    """Opens sessions on one or more environment services; a session stays where it was opened.

    Services take turns. One that has failed is asked last for a few seconds, so that retries go elsewhere.
    """

    def __init__(
        self,
        urls: Sequence[str],
        token: str | None = None,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        place_timeout_s: float = PLACE_TIMEOUT_S,
        retry_s: float = RETRY_S,
        batch_delay_s: float = 0.0,
    ) -> None:
        if not urls:
            raise ConfigError("an environment client needs at least one service's URL")
        self.open_timeout_s = open_timeout_s
        self.place_timeout_s = place_timeout_s
        self._token, self._retry_s, self._batch_delay_s = token, retry_s, batch_delay_s
        self._services = [self._service(url) for url in urls]
        self._urls = [url.rstrip("/") for url in urls]
        self._left: list[EnvServiceClient] = []
        self._next = 0
        self._waiting = 0
        """Opens that wait because every place is taken."""
        self._logged = -math.inf

    def _service(self, url: str, token: str | None = None) -> EnvServiceClient:
        return EnvServiceClient(url, token or self._token, self._retry_s, self._batch_delay_s)

    async def open(self, task: Task, config: dict[str, Any]) -> EnvSession:
        """Open a session; while every place is taken, wait for one.

        The wait has no limit as long as some place is freed every `place_timeout_s`. Raises
        `EnvironmentFailure` (the environment raised or refuses its configuration) and `InfrastructureError` (no
        service could be reached or had room).
        """
        operation: dict[str, Any] = {
            "op": "open",
            "task": task_to_map(task),
            "config": config,
            "key": uuid.uuid4().hex,
            "wait_s": 0.0,
        }
        waiting_since = 0.0
        try:
            while True:
                asked = time.monotonic()
                try:
                    return await self._open(operation)
                except Full as error:
                    if error.stuck_s is None:
                        raise
                    now = time.monotonic()
                    if not waiting_since:
                        waiting_since = now
                        self._waiting += 1
                    self._check_progress(error, error.stuck_s, now - waiting_since)
                    if now - asked < operation["wait_s"]:
                        # A service that shuts down does not let its callers wait.
                        await asyncio.sleep(error.retry_after_s * random.uniform(0.5, 1.5))
                    operation["wait_s"] = round(min(WAIT_S, self.place_timeout_s) / len(self._services), 3)
        except asyncio.CancelledError:
            for service in self._services:
                service.abandon(operation["key"])
            raise
        finally:
            self._waiting -= bool(waiting_since)

    def _check_progress(self, error: Full, stuck_s: float, waited_s: float) -> None:
        """Log the wait now and then. Raises `InfrastructureError` when no place was freed for too long."""
        if min(stuck_s, waited_s) >= self.place_timeout_s:
            raise InfrastructureError(
                f"no place came free within {self.place_timeout_s:g} s: {error}; raise env.max_sessions or env.limits, "
                "or look for sessions that do not end"
            )
        now = time.monotonic()
        if waited_s > TELL_EVERY_S and now - self._logged > TELL_EVERY_S:
            self._logged = now
            log.warning("%d episodes wait for a place: %s", self._waiting, error)

    async def _open(self, operation: dict[str, Any]) -> EnvSession:
        """Ask every service in turn until one opens the session.

        Raises `Full` if all places are taken, with the answer of the service that freed one last, and as `open` does.
        """
        deadline = time.monotonic() + self.open_timeout_s
        last: Full | None = None
        while True:
            full: list[Full] = []
            failure = InfrastructureError("no environment service answered in time")
            for service in self._in_turn():
                # Rounded, so that opens at the same moment share a timer.
                left_s = round(deadline - time.monotonic(), 1)
                if left_s < LEAST_S:
                    break
                wait_s: float = operation["wait_s"]
                deadline += wait_s
                try:
                    return EnvSession(service, await service.operate(operation, left_s + wait_s))
                except Full as error:
                    full.append(error)
                except InfrastructureError as error:
                    failure = error
            taken = [error for error in full if error.stuck_s is not None]
            if taken:
                raise min(taken, key=lambda error: error.stuck_s or 0.0)
            # Not all at once: many episodes wait for the few places that come free.
            pause_s = min((e.retry_after_s for e in full), default=0.0) * random.uniform(0.5, 1.5)
            last = full[-1] if full else last
            # It was refused for lack of places, and there is too little time left to ask another service.
            if last is not None and time.monotonic() + max(pause_s, LEAST_S) >= deadline:
                raise InfrastructureError(f"no room within {self.open_timeout_s:g} s: {last}")
            if not full:
                raise failure
            await asyncio.sleep(pause_s)

    @property
    def urls(self) -> list[str]:
        """Where sessions are opened."""
        return list(self._urls)

    def join(self, url: str, token: str | None = None) -> None:
        """Open sessions on one more service, with its own token if there is one.

        Another one at a known address takes the place of the one there; sessions that are open continue.
        """
        url = url.rstrip("/")
        if url not in self._urls:
            self._urls.append(url)
            self._services.append(self._service(url, token))
        elif token is not None:
            place = self._urls.index(url)
            self._left.append(self._services[place])
            self._services[place] = self._service(url, token)

    def leave(self, url: str) -> None:
        """Open no further sessions on a service; open ones continue. The last service stays."""
        if url.rstrip("/") in self._urls and len(self._urls) > 1:
            place = self._urls.index(url.rstrip("/"))
            del self._urls[place]
            self._left.append(self._services.pop(place))

    async def close(self) -> None:
        """Close connections."""
        await to_their_ends(service.close() for service in (*self._services, *self._left))

    def _in_turn(self) -> list[EnvServiceClient]:
        start = self._next % len(self._services)
        self._next += 1
        turn = self._services[start:] + self._services[:start]
        return sorted(turn, key=lambda service: service.suspect)


def _action_to_map(action: Action) -> dict[str, Any]:
    if action.tool_calls:
        return asdict(action)
    return {"content": action.content, "tool_calls": (), "parse_errors": action.parse_errors}


class LocalEnvs:
    """Sessions in this process: of a rollout worker that has no environment service, for simple loops and tests.

    place_timeout_s: how long an open waits for a place. limits, served: see `EnvHost`.
    """

    def __init__(
        self,
        max_sessions: int = 4096,
        place_timeout_s: float = 0.0,
        limits: Mapping[str, int] | None = None,
        served: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        # Sessions are in nobody's hands but this process's, and are not reaped.
        self.host = EnvHost(max_sessions, lease_s=3600.0, limits=limits, served=served)
        self.place_timeout_s = place_timeout_s

    async def open(self, task: Task, config: dict[str, Any]) -> LocalSession:
        """Open a session. Raises `EnvironmentFailure` or `InfrastructureError`."""
        try:
            opened = await self.host.open(task, config, wait_s=self.place_timeout_s)
            return LocalSession(self.host, opened)
        except AsyncRLError as error:
            raise sorted_failure(known_class(error).__name__, str(error)) from error

    async def close(self) -> None:
        await self.host.close_all()


class LocalSession:
    """A session of `LocalEnvs`."""

    def __init__(self, host: EnvHost, session: HostedSession) -> None:
        self._host = host
        self.id = session.id
        self.messages = session.messages
        self.tools = session.opened.tools
        self.max_turns = session.opened.max_turns
        self.least_step_s = session.opened.least_step_s

    async def step(self, step_index: int, action: Action, timeout_s: float) -> Step:
        """Advance by one turn. Raises as `EnvSession.step` does."""
        try:
            return await self._host.step(self.id, step_index, action, timeout_s)
        except AsyncRLError as error:
            raise sorted_failure(known_class(error).__name__, str(error)) from error

    async def close(self) -> None:
        await self._host.close(self.id)
