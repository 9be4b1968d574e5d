"""The buffer process: the ledger behind HTTP.

    asyncrl serve buffer --folder runs/NAME

Control messages are JSON, groups are msgpack with raw arrays. `lease` and `take` wait on the server, so nobody
polls; a waiter is woken by the change it waits for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from asyncrl.buffer.ledger import Ledger, LedgerSettings, PutResult
from asyncrl.data.codec import decode_group, lease_to_map, task_from_map, unpack
from asyncrl.errors import AsyncRLError, InputError
from asyncrl.services.http import create_app, serve

MAX_BODY_BYTES = 256 * 1024 * 1024
MAX_WAIT_S = 300.0
MAX_TASKS = 100_000
MAX_NAME = 256
REAP_EVERY_S = 1.0
MSGPACK = "application/msgpack"


class BufferService:
    """The ledger with a condition that is notified of every change."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.changed = asyncio.Condition()

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def wait_for(self, attempt: Any, wait_s: float, stopping: asyncio.Event) -> Any:
        """Call `attempt` until it gives something, `wait_s` passed or the service stops; again after each change."""
        deadline = time.monotonic() + wait_s
        async with self.changed:
            while (found := attempt()) is None and not stopping.is_set():
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                try:
                    async with asyncio.timeout(left):
                        await self.changed.wait()
                except TimeoutError:
                    return attempt()
        return found

    async def wake_at_stop(self, stopping: asyncio.Event) -> None:
        """Wake all waiters when the service stops, and keep them awake; ends only by cancellation."""
        await stopping.wait()
        await self.notify()
        await asyncio.Event().wait()

    async def reap(self) -> None:
        """Expire leases for ever."""
        while True:
            await asyncio.sleep(REAP_EVERY_S)
            if self.ledger.expire():
                await self.notify()


def create_buffer_app(ledger: Ledger, token: str = "") -> FastAPI:
    """Return the HTTP app over an open ledger."""
    service = BufferService(ledger)

    @asynccontextmanager
    async def open_ledger() -> AsyncIterator[None]:
        yield
        ledger.close()

    background = {"lease reaper": service.reap, "stop": lambda: service.wake_at_stop(app.state.stopping)}
    app = create_app("asyncrl buffer", token, MAX_BODY_BYTES, background=background, lifespan=open_ledger)
    _add_planning(app, service)
    _add_leases(app, service)
    _add_groups(app, service)
    _add_status(app, service)
    return app


def _add_planning(app: FastAPI, service: BufferService) -> None:
    @app.post("/v1/tasks")
    async def add_tasks(request: Request) -> dict[str, int]:
        body = _map(unpack(await request.body()), {"tasks"})
        if not isinstance(body["tasks"], list) or len(body["tasks"]) > MAX_TASKS:
            raise InputError(f"tasks: must be a list of at most {MAX_TASKS}")
        tasks = [task_from_map(task, f"tasks[{i}]") for i, task in enumerate(body["tasks"])]
        added = service.ledger.add_tasks(tasks)
        await service.notify()
        return {"added": added}

    @app.post("/v1/plan/close")
    async def close_plan() -> dict[str, bool]:
        service.ledger.close_plan()
        await service.notify()
        return {"closed": True}


def _add_leases(app: FastAPI, service: BufferService) -> None:
    @app.post("/v1/lease")
    async def lease(request: Request) -> Response:
        body = _map(unpack(await request.body()), {"worker", "wait_s"})
        worker, wait_s = _text(body, "worker"), _seconds(body, "wait_s")
        found = await service.wait_for(lambda: service.ledger.lease(worker), wait_s, app.state.stopping)
        return _packed({"lease": None if found is None else lease_to_map(found)})

    @app.post("/v1/renew")
    async def renew(request: Request) -> dict[str, float]:
        body = _map(unpack(await request.body()), {"lease"})
        return {"expires_in_s": service.ledger.renew(_text(body, "lease"))}

    @app.post("/v1/release")
    async def release(request: Request) -> dict[str, bool]:
        body = _map(unpack(await request.body()), {"lease"})
        service.ledger.release(_text(body, "lease"))
        await service.notify()
        return {"released": True}


def _add_groups(app: FastAPI, service: BufferService) -> None:
    def put_one(body: bytes) -> PutResult:
        return service.ledger.put(decode_group(body), body)

    @app.post("/v1/put")
    async def put(request: Request) -> Response:
        result = put_one(await request.body())
        await service.notify()
        return _packed({"outcome": result.outcome, "reason": result.reason, "duplicate": result.duplicate})

    @app.post("/v1/put_many")
    async def put_many(request: Request) -> Response:
        """Put several groups; each answers for itself."""
        body = _map(unpack(await request.body()), {"groups"})
        if not isinstance(body["groups"], list) or not all(isinstance(g, bytes) for g in body["groups"]):
            raise InputError("groups: must be a list of encoded groups")
        results: list[dict[str, Any]] = []
        for one in body["groups"]:
            try:
                r = put_one(one)
                results.append({"outcome": r.outcome, "reason": r.reason, "duplicate": r.duplicate})
            except AsyncRLError as error:
                results.append({"error": type(error).__name__, "message": str(error)})
        await service.notify()
        return _packed({"results": results})

    @app.post("/v1/take")
    async def take(request: Request) -> Response:
        body = _map(unpack(await request.body()), {"step", "wait_s"})
        step, wait_s = _count(body, "step"), _seconds(body, "wait_s")
        groups = await service.wait_for(lambda: service.ledger.take(step).groups, wait_s, app.state.stopping)
        awaited = () if groups is not None else service.ledger.take(step).awaited
        return _packed({"groups": groups, "awaited": list(awaited)})

    @app.post("/v1/commit")
    async def commit(request: Request) -> dict[str, int]:
        body = _map(unpack(await request.body()), {"version"})
        service.ledger.commit(_count(body, "version"))
        await service.notify()
        return {"version": service.ledger.version}

    @app.post("/v1/rollback")
    async def rollback(request: Request) -> dict[str, int]:
        body = _map(unpack(await request.body()), {"version"})
        moved = service.ledger.rollback_to(_count(body, "version"))
        await service.notify()
        return {"version": service.ledger.version, "pending_again": moved}


def _add_status(app: FastAPI, service: BufferService) -> None:
    registry = CollectorRegistry()
    registry.register(_Metrics(service.ledger))

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return service.ledger.stats()

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")


class _Metrics:
    """Exports the ledger's counts to Prometheus."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def collect(self) -> Any:
        for name, value in self.ledger.stats().items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield GaugeMetricFamily(f"asyncrl_buffer_{name}", f"{name} in the ledger", value=value)


def _map(body: Any, keys: set[str]) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise InputError(f"body: must be a map, got {type(body).__name__}")
    if set(body) != keys:
        raise InputError(f"body: must have the keys {', '.join(sorted(keys))}, got {', '.join(map(str, body)) or 'none'}")
    return body


def _text(body: dict[str, Any], key: str) -> str:
    value = body[key]
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        raise InputError(f"{key}: must be a string of 1 to {MAX_NAME} characters")
    return value


def _seconds(body: dict[str, Any], key: str) -> float:
    value = body[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_WAIT_S:
        raise InputError(f"{key}: must be a number from 0 to {MAX_WAIT_S:g}, got {value!r}")
    return float(value)


def _count(body: dict[str, Any], key: str) -> int:
    value = body[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise InputError(f"{key}: must be a whole number from 0, got {value!r}")
    return value


def _packed(message: dict[str, Any]) -> Response:
    return Response(msgpack.packb(message), media_type=MSGPACK)


def serve_buffer(
    ledger: str,
    groups_per_step: int,
    max_staleness: int,
    group_size: int,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    ready_file: str | None = None,
    lease_s: float = 120.0,
    max_attempts: int = 3,
    drop_no_signal: bool = True,
    max_tokens: int = 2**24,
    base_version: int = 0,
) -> None:
    """Run a buffer until it is told to stop. See `LedgerSettings` for the bounds."""
    settings = LedgerSettings(
        groups_per_step, max_staleness, group_size, lease_s, max_attempts, drop_no_signal, max_tokens
    )
    serve(create_buffer_app(Ledger(ledger, settings, base_version), token), host, port, ready_file)
