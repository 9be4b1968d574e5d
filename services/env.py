"""The environment process: sessions behind HTTP.

    asyncrl serve env [--port N]

`POST /v1/sessions`, `POST /v1/sessions/ID/step`, `DELETE /v1/sessions/ID` for anybody; `POST /v1/batch` takes many
of these operations in one msgpack body, which is how a rollout worker with hundreds of episodes talks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import msgpack
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from pydantic import BaseModel, ConfigDict, Field

from asyncrl.data.codec import task_from_map, unpack
from asyncrl.env.host import EnvHost, HostedSession, SessionGone
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.registry import ENVS, load_env
from asyncrl.errors import AsyncRLError, EnvironmentFailure, InputError, UnavailableError
from asyncrl.services.http import create_app, error_response, serve

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_OPERATIONS = 4096
STATUSES: dict[type[Exception], int] = {SessionGone: 410, UnavailableError: 429, EnvironmentFailure: 502}


class ToolCallBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str = ""
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ActionBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    content: str = ""
    tool_calls: list[ToolCallBody] = Field(default_factory=list)
    parse_errors: list[str] = Field(default_factory=list)

    def to_action(self) -> Action:
        calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in self.tool_calls)
        return Action(self.content, calls, tuple(self.parse_errors))


class OpenBody(BaseModel):
    """`task` is {"id", "env", "seed", "split", "data"}."""

    model_config = ConfigDict(extra="forbid")
    task: dict[str, Any]
    config: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: str = Field("", max_length=256)


class StepBody(BaseModel):
    model_config = ConfigDict(extra="forbid")
    step_index: int = Field(ge=0)
    action: ActionBody
    timeout_s: float = Field(30.0, gt=0, le=3600)


def create_env_app(host: EnvHost, token: str = "") -> FastAPI:
    """Return the HTTP app over a host of sessions."""

    @asynccontextmanager
    async def sessions() -> AsyncIterator[None]:
        try:
            await host.start()
            yield
        finally:
            await host.close_all()

    app = create_app(
        "asyncrl environments", token, MAX_BODY_BYTES, STATUSES, {"session reaper": host.reap}, sessions
    )
    _add_sessions(app, host)
    _add_batch(app, host)
    _add_status(app, host)
    return app


def _add_sessions(app: FastAPI, host: EnvHost) -> None:
    @app.post("/v1/sessions", status_code=201)
    async def open_session(body: OpenBody) -> dict[str, Any]:
        session = await host.open(task_from_map(_task(body.task)), body.config, body.idempotency_key)
        return _session(session) | {"lease_s": host.lease_s}

    @app.post("/v1/sessions/{session_id}/step")
    async def step(session_id: str, body: StepBody) -> dict[str, Any]:
        return asdict(await host.step(session_id, body.step_index, body.action.to_action(), body.timeout_s))

    @app.post("/v1/sessions/{session_id}/renew")
    async def renew(session_id: str) -> dict[str, float]:
        return {"lease_s": host.renew(session_id)}

    @app.get("/v1/sessions/{session_id}")
    async def show(session_id: str) -> dict[str, Any]:
        host.renew(session_id)
        session = host.show(session_id)
        return _session(session) | {"next_step_index": session.next_index}

    @app.delete("/v1/sessions/{session_id}")
    async def close(session_id: str) -> dict[str, bool]:
        await host.close(session_id)
        return {"closed": True}


def _add_batch(app: FastAPI, host: EnvHost) -> None:
    async def one(operation: Any) -> dict[str, Any]:
        try:
            return await _operate(host, operation)
        except AsyncRLError as error:
            return {"error": type(error).__name__, "message": str(error), "status": _status(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": "InputError", "message": f"malformed operation: {error!r}", "status": 400}

    @app.post("/v1/batch")
    async def batch(request: Request) -> Response:
        body = unpack(await request.body())
        operations = body.get("operations") if isinstance(body, dict) else None
        if not isinstance(operations, list) or len(operations) > MAX_OPERATIONS:
            raise InputError(f"operations: must be a list of at most {MAX_OPERATIONS}")
        results = await asyncio.gather(*(one(operation) for operation in operations))
        return Response(msgpack.packb({"results": results}), media_type="application/msgpack")


async def _operate(host: EnvHost, operation: dict[str, Any]) -> dict[str, Any]:
    kind = operation["op"]
    if kind == "step":
        action = operation["action"]
        calls = tuple(
            ToolCall(str(c["id"]), str(c["name"]), dict(c["arguments"])) for c in action["tool_calls"]
        )
        parsed = Action(str(action["content"]), calls, tuple(map(str, action["parse_errors"])))
        index, timeout_s = int(operation["step_index"]), float(operation["timeout_s"])
        return asdict(await host.step(str(operation["session"]), index, parsed, timeout_s))
    if kind == "open":
        key = str(operation.get("key", ""))
        return _session(await host.open(task_from_map(operation["task"]), dict(operation["config"]), key))
    if kind == "close":
        await host.close(str(operation["session"]))
        return {}
    raise InputError(f"op: must be open, step or close, got {kind!r}")


def _add_status(app: FastAPI, host: EnvHost) -> None:
    registry = CollectorRegistry()
    registry.register(_Metrics(host))

    @app.get("/v1/envs")
    async def envs() -> dict[str, list[str]]:
        return {"envs": sorted(ENVS)}

    @app.get("/v1/envs/{name}/schema")
    async def schema(name: str) -> dict[str, Any]:
        env = load_env(name) if name in ENVS else None
        if env is None:
            raise InputError(f"unknown environment {name!r}; allowed: {', '.join(sorted(ENVS))}")
        return {
            "name": name,
            "tools": env.tools,
            "max_turns": env.max_turns,
            "doc": (env.__doc__ or "").strip(),
        }

    @app.get("/v1/status")
    async def status() -> dict[str, int]:
        return _counts(host)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")


class _Metrics:
    """Exports the host's counts to Prometheus."""

    def __init__(self, host: EnvHost) -> None:
        self.host = host

    def collect(self) -> Any:
        counts = _counts(self.host)
        yield GaugeMetricFamily("asyncrl_env_sessions", "live sessions", value=counts.pop("sessions"))
        for name, value in counts.items():
            yield CounterMetricFamily(f"asyncrl_env_{name}", f"{name} since the start", value=value)


def _counts(host: EnvHost) -> dict[str, int]:
    return {
        "sessions": len(host.sessions),
        "opened": host.counts.opened,
        "steps": host.counts.steps,
        "failed": host.counts.failed,
        "lost": host.counts.lost,
        "reaped": host.counts.reaped,
        "rejected": host.counts.rejected,
    }


def _session(session: HostedSession) -> dict[str, Any]:
    return {
        "session_id": session.id,
        "messages": session.messages,
        "tools": session.opened.tools,
        "max_turns": session.opened.max_turns,
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """Fill what a person leaves out of a task."""
    return {"seed": 0, "split": "train", "data": {}, "id": f"seed-{task.get('seed', 0)}", **task}


def _status(error: AsyncRLError) -> int:
    return error_response(error, {**STATUSES}).status_code


def serve_env(
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    ready_file: str | None = None,
    max_sessions: int = 1024,
    lease_s: float = 120.0,
) -> None:
    """Run an environment service until it is told to stop."""
    serve(create_env_app(EnvHost(max_sessions, lease_s), token), host, port, ready_file)
