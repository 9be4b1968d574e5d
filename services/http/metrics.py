"""The route under which a service tells Prometheus of itself."""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, generate_latest


class Collector(Protocol):
    """What `prometheus_client` asks for metrics."""

    def collect(self) -> Any: ...


def add_metrics(app: FastAPI, *collectors: Collector, **route: Any) -> None:
    """Add `GET /metrics` with what the collectors have. route: further settings of the route, for its description."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)  # type: ignore[arg-type]

    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    app.get("/metrics", **route)(metrics)
