"""The routes of lists, each of which reads one page of its table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from asyncrl.extensions.tinker.checkpoint_routes import API
from asyncrl.extensions.tinker.clients import Client
from asyncrl.extensions.tinker.listings import Page
from asyncrl.extensions.tinker.progress import CONTENT_TYPE, exposition
from asyncrl.extensions.tinker.server import Server
from asyncrl.extensions.tinker.views import shown, state, training_run

LIMIT = 100


def add_listing_routes(app: FastAPI, server: Server, client_of: Callable[[Request], Client]) -> None:
    """Add them."""
    listings = server.listings

    def page(request: Request, limit: int, offset: int) -> Page:
        return Page(client_of(request).name, limit, offset)

    def cursor(asked: Page, total: int) -> dict[str, int]:
        limit, offset = asked.bounds
        return {"offset": offset, "limit": limit, "total_count": total}

    @app.get(f"{API}/training_runs")
    async def runs(request: Request, limit: int = LIMIT, offset: int = 0) -> dict[str, Any]:
        asked = page(request, limit, offset)
        found, total = listings.policies(asked)
        return {
            "training_runs": [training_run(listings, one) for one in found],
            "cursor": cursor(asked, total),
        }

    @app.get(f"{API}/training_runs/{{policy}}")
    async def run(policy: str, request: Request) -> dict[str, Any]:
        return training_run(listings, server.policy(policy, client_of(request)))

    @app.get(f"{API}/training_runs/{{policy}}/checkpoints")
    async def checkpoints_of(policy: str, request: Request) -> dict[str, Any]:
        record = server.policy(policy, client_of(request))
        return {"checkpoints": [shown(one) for one in server.ledger.checkpoints(record.id)]}

    @app.get(f"{API}/checkpoints")
    async def checkpoints(request: Request, limit: int = LIMIT, offset: int = 0) -> dict[str, Any]:
        asked = page(request, limit, offset)
        found, total = listings.checkpoints(asked)
        return {"checkpoints": [shown(one) for one in found], "cursor": cursor(asked, total)}

    @app.get(f"{API}/sessions")
    async def sessions(request: Request, limit: int = LIMIT, offset: int = 0) -> dict[str, Any]:
        return {"sessions": listings.sessions(page(request, limit, offset))}

    @app.get(f"{API}/sessions/{{session}}")
    async def session_of(session: str, request: Request) -> dict[str, Any]:
        about = server.session(session, client_of(request))["about"]
        return {
            "training_run_ids": listings.of_session("policies", session),
            "sampler_ids": listings.of_session("samplers", session),
            "user_metadata": about["user_metadata"],
            "display_name": about["display_name"],
        }

    @app.get("/state")
    async def all_state() -> dict[str, Any]:
        return state(server)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(server), media_type=CONTENT_TYPE)
