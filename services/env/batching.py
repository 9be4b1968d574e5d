"""`POST /v1/batch`: many operations in one msgpack body, each answered as soon as it is done.

    request   {"operations": [{"op": "open", "task", "config", "key", "wait_s"}
                            | {"op": "step", "session", "step_index", "action", "timeout_s"}
                            | {"op": "renew", "sessions"}
                            | {"op": "close", "session"} | {"op": "abandon", "key"}, ...],
               "gather_s": minimum seconds between two pieces of the answer, 0 by default}
    answer    [number, result] after [number, result] ..., in the order in which they end

A result is a session with its `lease_s`, a step, {"gone": [session, ...]} of those that could not be renewed, or {}; or
{"error", "message", "status"} and, where a retry may help, "retry_after_s"; where all places are taken, also "stuck_s",
the seconds since one was last freed. Operations that run in this process are answered in one piece; a slow operation
delays no other. An open waits `wait_s` for a place; a repeated open with the same key keeps its place in the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

import msgpack
from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from asyncrl.config_sections import MAX_STEP_S
from asyncrl.data.codec import task_from_map, unpack
from asyncrl.env.host import EnvHost, HostedSession
from asyncrl.env.hosting.failures import known_class
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import AsyncRLError, EnvironmentFailure, InputError
from asyncrl.services.env.workers.messages import step_to_map
from asyncrl.services.http.app import error_response

MEDIA_TYPE = "application/x-msgpack-sequence"
MAX_OPERATIONS = 4096
MAX_WAIT_S = 60.0
MAX_GATHER_S = 10.0

log = logging.getLogger("asyncrl.env")


class BatchRoute:
    """Answers batches over a host. An operation continues when its client disconnects; repeating it is safe."""

    def __init__(self, host: EnvHost, statuses: Mapping[type[Exception], int]) -> None:
        self.host = host
        self.statuses = statuses
        self._running: set[asyncio.Task[None]] = set()
        # Kept, because each new one allocates a quarter of a megabyte.
        self._packer = msgpack.Packer(unicode_errors="surrogatepass")

    async def __call__(self, request: Request) -> Response:
        body = unpack(await request.body())
        operations = body.get("operations") if isinstance(body, dict) else None
        if not isinstance(operations, list) or len(operations) > MAX_OPERATIONS:
            raise InputError(f"operations: must be a list of at most {MAX_OPERATIONS}")
        gather_s = body.get("gather_s", 0.0)
        if not isinstance(gather_s, int | float) or not 0 <= gather_s <= MAX_GATHER_S:
            raise InputError(f"gather_s: must be from 0 to {MAX_GATHER_S:g}, got {gather_s!r}")
        frames = _Frames(len(operations))
        for number, operation in enumerate(operations):
            task = asyncio.create_task(self._answer(frames, number, operation))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return _Answer(frames, gather_s)

    async def _answer(self, frames: _Frames, number: int, operation: Any) -> None:
        try:
            result = await prepare(self.host, operation)
        except AsyncRLError as error:
            result = self._error(error)
        except Exception as error:
            log.exception("operation %s failed unexpectedly", number)
            message = f"unexpected {type(error).__name__}; see the service's log"
            result = {"error": "InternalError", "message": message, "status": 500}
        try:
            frame = self._packer.pack([number, result])
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            failure = EnvironmentFailure(f"environment: its answer cannot be sent: {error}")
            frame = self._packer.pack([number, self._error(failure)])
        frames.add(frame)

    def _error(self, error: AsyncRLError) -> dict[str, Any]:
        found = {
            "error": known_class(error).__name__,
            "message": str(error),
            "status": error_response(error, self.statuses).status_code,
        }
        for name in ("retry_after_s", "stuck_s"):
            if (value := getattr(error, name, None)) is not None:
                found[name] = value
        return found


def prepare(host: EnvHost, operation: Any) -> Coroutine[Any, Any, dict[str, Any]]:
    """Return the operation, checked and ready to run. Raises `InputError`."""
    try:
        kind = operation["op"]
        if kind == "step":
            timeout_s = float(operation["timeout_s"])
            if not 0 < timeout_s <= MAX_STEP_S:
                raise InputError(f"timeout_s: must be above 0 and at most {MAX_STEP_S:g}, got {timeout_s}")
            index, action = int(operation["step_index"]), _action(operation["action"])
            return _step(host, str(operation["session"]), index, action, timeout_s)
        if kind == "open":
            task, config = task_from_map(operation["task"]), dict(operation["config"])
            wait_s = float(operation.get("wait_s", 0.0))
            if not 0 <= wait_s <= MAX_WAIT_S:
                raise InputError(f"wait_s: must be from 0 to {MAX_WAIT_S:g}, got {wait_s}")
            return _open(host, task, config, str(operation.get("key", "")), wait_s)
        if kind == "close":
            return _close(host, str(operation["session"]))
        if kind == "abandon":
            return _abandon(host, str(operation["key"]))
        if kind == "renew":
            return _renew(host, [str(session) for session in operation["sessions"]])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"malformed operation: {error!r}") from error
    raise InputError(f"op: must be open, step, renew, close or abandon, got {kind!r}")


def session_to_map(session: HostedSession) -> dict[str, Any]:
    """What a client sees of a session."""
    opened = session.opened
    return {
        "session_id": session.id,
        "messages": opened.messages,
        "tools": opened.tools,
        "max_turns": opened.max_turns,
        "least_step_s": opened.least_step_s,
    }


async def _open(host: EnvHost, task: Any, config: dict[str, Any], key: str, wait_s: float) -> dict[str, Any]:
    return session_to_map(await host.open(task, config, key, wait_s)) | {"lease_s": host.lease_s}


async def _step(host: EnvHost, session: str, index: int, action: Action, timeout_s: float) -> dict[str, Any]:
    return step_to_map(await host.step(session, index, action, timeout_s))


async def _renew(host: EnvHost, sessions: list[str]) -> dict[str, Any]:
    return {"gone": host.renew_all(sessions)}


async def _abandon(host: EnvHost, key: str) -> dict[str, Any]:
    host.abandon(key)
    return {}


async def _close(host: EnvHost, session: str) -> dict[str, Any]:
    await host.close(session)
    return {}


def _action(raw: Mapping[str, Any]) -> Action:
    calls = tuple(ToolCall(str(c["id"]), str(c["name"]), dict(c["arguments"])) for c in raw["tool_calls"])
    return Action(str(raw["content"]), calls, tuple(map(str, raw["parse_errors"])))


class _Frames:
    """Answers that are ready to be sent."""

    def __init__(self, left: int) -> None:
        self.left = left
        """Answers not yet taken."""
        self._ready: list[bytes] = []
        self._filled = asyncio.Event()

    def add(self, frame: bytes) -> None:
        self._ready.append(frame)
        self._filled.set()

    async def take(self) -> bytes:
        """Wait for at least one answer; return all that are ready."""
        await self._filled.wait()
        self._filled.clear()
        frames, self._ready = self._ready, []
        self.left -= len(frames)
        return b"".join(frames)


class _Answer(Response):
    """Sends answers as they come, or those of `gather_s` together after the first."""

    def __init__(self, frames: _Frames, gather_s: float) -> None:
        # Without a body Starlette announces a length of 0.
        super().__init__(media_type=MEDIA_TYPE)
        self.raw_headers = [item for item in self.raw_headers if item[0] != b"content-length"]
        self.frames = frames
        self.gather_s = gather_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chunk = await self.frames.take() if self.frames.left else b""
        headers = self.raw_headers
        if not self.frames.left:
            headers = [*headers, (b"content-length", str(len(chunk)).encode())]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        while self.frames.left:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if self.gather_s:
                await asyncio.sleep(self.gather_s)
            chunk = await self.frames.take()
        await send({"type": "http.response.body", "body": chunk, "more_body": False})
