"""The environment process: sessions behind HTTP, run here or in worker processes.

    asyncrl serve env [--recipe NAME | --folder RUN] [--port N]

`POST /v1/sessions`, `POST /v1/sessions/ID/step` and `DELETE /v1/sessions/ID` take JSON. `POST /v1/batch` (`batching`)
takes many of these operations at once; rollout workers with hundreds of episodes use it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response

from asyncrl.credentials import Access, Credentials, own_credentials
from asyncrl.data.codec import task_from_map
from asyncrl.env.host import EnvHost, SessionGone
from asyncrl.env.registry import ENVS
from asyncrl.errors import EnvironmentFailure, UnavailableError
from asyncrl.services.env.batching import BatchRoute, session_to_map
from asyncrl.services.env.messages import (
    CloseAnswer,
    LeaseAnswer,
    OpenAnswer,
    OpenBody,
    ShowAnswer,
    StepAnswer,
    StepBody,
    errors,
)
from asyncrl.services.env.status import add_status
from asyncrl.services.env.workers.messages import step_to_map
from asyncrl.services.env.workers.pool import HANG_S, START_TIMEOUT_S, NoWorkerReady, WorkerPool
from asyncrl.services.http.app import STATUSES, add_hot_route, create_app, serve

MAX_BODY_BYTES = 16 * 1024 * 1024
OWN_STATUSES: dict[type[Exception], int] = {
    SessionGone: 410,
    NoWorkerReady: 503,
    UnavailableError: 429,
    EnvironmentFailure: 502,
}


def create_env_app(host: EnvHost, access: Access) -> FastAPI:
    """Return the HTTP app over a host of sessions; it starts and ends what runs them."""

    @asynccontextmanager
    async def sessions() -> AsyncIterator[None]:
        try:
            await host.start()
            yield
        finally:
            await host.close_all()

    app = create_app(
        "asyncrl environments",
        access,
        {"": {"worker"}},
        MAX_BODY_BYTES,
        OWN_STATUSES,
        {"session reaper": host.reap},
        sessions,
    )
    app.state.stopping = host.places.stopping
    _add_sessions(app, host)
    add_hot_route(app, "/v1/batch", BatchRoute(host, STATUSES | OWN_STATUSES))
    add_status(app, host)
    return app


def _add_sessions(app: FastAPI, host: EnvHost) -> None:
    failing = (410, 502, 504)

    @app.post(
        "/v1/sessions", status_code=201, response_model=OpenAnswer, responses=errors(409, 429, 502, 503, 504)
    )
    async def open_session(body: OpenBody) -> Response:
        """Create a session: an environment with its task, ready for step 0."""
        session = await host.open(task_from_map(body.task.to_map()), body.config, body.idempotency_key)
        return _json(session_to_map(session) | {"lease_s": host.lease_s}, 201)

    @app.post("/v1/sessions/{session_id}/step", response_model=StepAnswer, responses=errors(409, *failing))
    async def step(session_id: str, body: StepBody) -> Response:
        """Advance a session by one assistant turn; the last step may be asked again."""
        action = body.action.to_action()
        return _json(step_to_map(await host.step(session_id, body.step_index, action, body.timeout_s)))

    @app.post("/v1/sessions/{session_id}/renew", response_model=LeaseAnswer, responses=errors(*failing))
    async def renew(session_id: str) -> Response:
        """Keep a session without a step."""
        return _json({"lease_s": host.renew(session_id)})

    @app.get("/v1/sessions/{session_id}", response_model=ShowAnswer, responses=errors(*failing))
    async def show(session_id: str) -> Response:
        """Show and keep a session."""
        host.renew(session_id)
        session = host.show(session_id)
        return _json(session_to_map(session) | {"next_step_index": session.next_index})

    @app.delete("/v1/sessions/{session_id}", response_model=CloseAnswer, responses=errors())
    async def close(session_id: str) -> Response:
        """End a session; ending it again has no effect."""
        await host.close(session_id)
        return _json({"closed": True})


def _json(body: dict[str, Any], status: int = 200) -> Response:
    """A JSON answer in ASCII, which carries any text. Raises `EnvironmentFailure` for values that JSON cannot hold."""
    try:
        return Response(json.dumps(body, allow_nan=False), status, media_type="application/json")
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFailure(f"environment: its answer is no JSON: {error}") from error


def serve_env(
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Credentials | None = None,
    ready_file: str | Path | None = None,
    advertise: str = "",
    max_sessions: int = 1024,
    lease_s: float = 120.0,
    processes: int = 0,
    limits: Mapping[str, int] | None = None,
    hang_s: float = HANG_S,
    start_timeout_s: float = START_TIMEOUT_S,
    envs: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Run an environment service until it is told to stop.

    envs: the environments it serves, with the configuration of each; none for the built-in ones with defaults.
    max_sessions, limits: sessions at once, in all and by environment. lease_s: how long a session lives without
    a call. processes: worker processes, 0 to run sessions in this one. hang_s: silence after which a worker is
    replaced. start_timeout_s: how long a worker may start without progress.
    """
    runtime = WorkerPool(processes, hang_s, start_timeout_s) if processes else None
    served = {name: {} for name in ENVS} if envs is None else envs
    sessions = EnvHost(max_sessions, lease_s, limits, runtime, served)
    access = (credentials or own_credentials()).access("env")
    serve(create_env_app(sessions, access), host, port, ready_file, advertise=advertise)
