"""Clients of environment services. Operations that become ready in one pass of the event loop travel together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from asyncrl import errors
from asyncrl.clients.http import HttpClient
from asyncrl.data.codec import task_to_map
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, Step
from asyncrl.errors import AsyncRLError, EnvironmentFailure, EpisodeError, InfrastructureError
from asyncrl.types import Message, Task

MAX_OPERATIONS = 256
OPEN_TIMEOUT_S = 90.0
MARGIN_S = 15.0


class EnvSession:
    """One open session on one service."""

    def __init__(self, service: _Service, opened: dict[str, Any]) -> None:
        self._service = service
        self.id: str = opened["session_id"]
        self.messages: list[Message] = opened["messages"]
        self.tools: list[dict[str, Any]] = opened["tools"]
        self.max_turns: int = opened["max_turns"]

    async def step(self, step_index: int, action: Action, timeout_s: float) -> Step:
        """Advance by one turn. Raises `EnvironmentFailure` or `InfrastructureError`."""
        operation = {
            "op": "step",
            "session": self.id,
            "step_index": step_index,
            "action": asdict(action),
            "timeout_s": timeout_s,
        }
        return Step(**await self._service.operate(operation, timeout_s + MARGIN_S))

    async def close(self) -> None:
        """End the session. Raises `InfrastructureError` when the service cannot be reached; it reaps it then."""
        await self._service.operate({"op": "close", "session": self.id}, OPEN_TIMEOUT_S)


class EnvClient:
    """Opens sessions on one or more environment services, in turn; a session stays where it was opened."""

    def __init__(self, urls: Sequence[str], token: str = "") -> None:
        self._services = [_Service(url, token) for url in urls]
        self._next = 0

    async def open(self, task: Task, config: dict[str, Any]) -> EnvSession:
        """Open a session. Raises `EnvironmentFailure` (it raised or refuses the configuration) or
        `InfrastructureError` (no service could be reached, or all are full)."""
        operation = {"op": "open", "task": task_to_map(task), "config": config, "key": uuid.uuid4().hex}
        failure: InfrastructureError | None = None
        for _ in self._services:
            service = self._services[self._next % len(self._services)]
            self._next += 1
            try:
                return EnvSession(service, await service.operate(operation, OPEN_TIMEOUT_S))
            except InfrastructureError as error:
                failure = error
        raise failure or InfrastructureError("no environment service is configured")

    async def close(self) -> None:
        """Close connections."""
        await asyncio.gather(*(service.http.close() for service in self._services))


@dataclass(slots=True)
class _Waiting:
    operation: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]
    timeout_s: float


class _Service:
    """Coalesces operations for one address."""

    def __init__(self, url: str, token: str) -> None:
        self.http = HttpClient(url, token)
        self._waiting: list[_Waiting] = []
        self._scheduled = False
        self._calls: set[asyncio.Task[None]] = set()

    async def operate(self, operation: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        waiting = _Waiting(operation, asyncio.get_running_loop().create_future(), timeout_s)
        self._waiting.append(waiting)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        return await waiting.answer

    def _flush(self) -> None:
        self._scheduled = False
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), MAX_OPERATIONS):
            call = asyncio.ensure_future(self._call(waiting[start : start + MAX_OPERATIONS]))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _call(self, batch: list[_Waiting]) -> None:
        body = {"operations": [w.operation for w in batch]}
        try:
            results = (await self.http.post("/v1/batch", body, max(w.timeout_s for w in batch)))["results"]
        except AsyncRLError as error:
            for waiting in batch:
                _settle(waiting, InfrastructureError(str(error)))
            return
        except asyncio.CancelledError:
            for waiting in batch:
                waiting.answer.cancel()
            raise
        for waiting, result in zip(batch, results, strict=True):
            _settle(waiting, _error(result) if "error" in result else result)


def _settle(waiting: _Waiting, outcome: dict[str, Any] | Exception) -> None:
    if waiting.answer.done():
        return
    if isinstance(outcome, Exception):
        waiting.answer.set_exception(outcome)
    else:
        waiting.answer.set_result(outcome)


def _error(result: dict[str, Any]) -> EpisodeError:
    """Sort a service's error: the environment's own failures, everything else is infrastructure."""
    name, message = result["error"], result["message"]
    if name in ("EnvironmentFailure", "InputError", "ConfigError"):
        return EnvironmentFailure(message)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, EpisodeError):
        return kind(message)
    return InfrastructureError(message)


class LocalEnvs:
    """Sessions in this process, for simple loops and tests."""

    def __init__(self, max_sessions: int = 4096) -> None:
        self.host = EnvHost(max_sessions, lease_s=3600.0)

    async def open(self, task: Task, config: dict[str, Any]) -> LocalSession:
        """Open a session. Raises `EnvironmentFailure`."""
        return LocalSession(self.host, await self.host.open(task, config))

    async def close(self) -> None:
        await self.host.close_all()


class LocalSession:
    """A session of `LocalEnvs`."""

    def __init__(self, host: EnvHost, session: Any) -> None:
        self._host = host
        self.id = session.id
        self.messages = session.messages
        self.tools = session.opened.tools
        self.max_turns = session.opened.max_turns

    async def step(self, step_index: int, action: Action, timeout_s: float) -> Step:
        return await self._host.step(self.id, step_index, action, timeout_s)

    async def close(self) -> None:
        await self._host.close(self.id)
