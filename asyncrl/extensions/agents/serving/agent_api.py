"""The routes that agents call with an episode's key, in front of a service's own."""

from __future__ import annotations

from fastapi import FastAPI

from asyncrl.extensions.agents.gateway.api import AgentApi
from asyncrl.extensions.agents.gateway.open_episodes import Episodes
from asyncrl.extensions.agents.gateway.owner_api import MAX_BODY_BYTES
from asyncrl.services.http.app import RequestGuard


def add_agent_api(app: FastAPI, episodes: Episodes) -> None:
    """Have agents' calls answered before the service's token is asked for: they have keys instead of it."""
    # Outside `AccessGuard`, but behind `RequestGuard`.
    app.add_middleware(AgentApi, episodes=episodes, max_body_bytes=MAX_BODY_BYTES)
    app.add_middleware(RequestGuard, hosts=app.state.hosts, max_body_bytes=MAX_BODY_BYTES)
