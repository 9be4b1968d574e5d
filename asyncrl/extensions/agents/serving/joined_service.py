"""A gateway that has joined a run: it leases groups as agents elsewhere ask for episodes, and puts what they played.

    asyncrl serve gateway --join URL --token-file FILE

`POST   /asyncrl/v1/episodes/next`        wait for an episode; the answer holds its task, address and keys
`GET    /asyncrl/v1/episodes/ID`          its state
`POST   /asyncrl/v1/episodes/ID/reward`   reward of a call or of the episode
`POST   /asyncrl/v1/episodes/ID/finish`   end it; the answer holds its trajectories and counters
`DELETE /asyncrl/v1/episodes/ID`          give it up: it is offered again
`GET    /asyncrl/v1/status`, `/metrics`   what is leased, waits and is played; counts for Prometheus

These take the token of the gateway's own callers, which is none of the run's; `gateway.api` has the routes that
take an episode's key. Leases, attempts, puts and the engines are a rollout worker's.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from asyncrl.config import Config
from asyncrl.credentials import Access, Credentials
from asyncrl.extensions.agents.gateway.body import checked
from asyncrl.extensions.agents.gateway.metrics import EpisodeMetrics
from asyncrl.extensions.agents.gateway.offers import Claim, Offers
from asyncrl.extensions.agents.gateway.open_episodes import NoEpisode
from asyncrl.extensions.agents.gateway.owner_api import (
    EPISODES,
    MAX_BODY_BYTES,
    add_episode_routes,
    finish,
    owner_body,
    reply,
)
from asyncrl.extensions.agents.players import Agents
from asyncrl.extensions.agents.serving.agent_api import add_agent_api
from asyncrl.rollout.elsewhere import PlayerParts
from asyncrl.services.http.app import create_app, serve
from asyncrl.services.http.metrics import add_metrics
from asyncrl.services.http.waiting import Waiters
from asyncrl.services.rollout.service import RolloutService, WorkerMetrics
from asyncrl.tracing import start_tracing, stop_tracing

MAX_WAIT_S = 60.0
"""The longest that one call waits for an episode; proxies end calls without a sign of life."""


class Next(BaseModel):
    """The body of `POST /asyncrl/v1/episodes/next`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    wait_s: float = Field(30.0, ge=0, le=MAX_WAIT_S)


def create_joined_gateway_app(service: RolloutService, access: Access) -> FastAPI:
    """Return the HTTP app; the lease loop runs as long as it does. `service` has players that offer, and a buffer."""
    agents = service.players
    assert isinstance(agents, Agents) and agents.offers is not None and service.loop is not None
    offers = agents.offers
    episodes = agents.episodes

    @asynccontextmanager
    async def clients() -> AsyncIterator[None]:
        yield
        await service.close()

    app = create_app(
        "asyncrl joined gateway",
        access,
        {},
        MAX_BODY_BYTES,
        {NoEpisode: 404},
        background={"lease loop": service.run, "members": service.follow_members, "reaper": episodes.reap},
        lifespan=clients,
    )
    add_agent_api(app, episodes)
    add_metrics(app, WorkerMetrics(service), EpisodeMetrics(episodes))

    @app.get("/asyncrl/v1/status")
    async def status() -> dict[str, Any]:
        return service.status() | {"waiting": offers.waiting, "played": offers.held}

    _add_offer_routes(app, agents, offers)
    add_episode_routes(app, episodes)
    return app


def _add_offer_routes(app: FastAPI, agents: Agents, offers: Offers) -> None:
    waiters: Waiters[Claim] = Waiters(app.state.stopping)
    offers.changed, offers.asking = waiters.pump, lambda: len(waiters)
    episodes = agents.episodes

    @app.post(f"{EPISODES}/next")
    async def ask(request: Request) -> Response:
        wait_s = checked(Next, await owner_body(request), "next").wait_s
        claim = await waiters.get(offers.take, wait_s, request)
        offer = None if claim is None else await claim.offer
        if offer is None:
            return reply(request, {"episode": None})
        task, episode = offer
        told = {"id": episode.id, "url": episode.url, "key": episode.key, "reward_key": episode.reward_key}
        return reply(request, {"episode": told | {"task": task}})

    @app.post(f"{EPISODES}/{{episode_id}}/finish")
    async def end(request: Request, episode_id: str) -> Response:
        body, episode = await owner_body(request), episodes.by_id(episode_id)
        offers.check(episode, body)
        answer = finish(request, episodes, episode, body)
        offers.finished(episode, body)
        return answer

    @app.delete(f"{EPISODES}/{{episode_id}}")
    async def give_up(request: Request, episode_id: str) -> Response:
        offers.give_up(episodes.by_id(episode_id))
        return reply(request, {})


def offering(offers: Offers) -> Callable[[PlayerParts], Agents]:
    """Return what makes the players of such a gateway, which agents elsewhere ask for episodes."""

    def make(parts: PlayerParts) -> Agents:
        token = parts.bearer("gateway")
        return Agents(parts.config, parts.engines, parts.renderer, parts.turns, token, parts.ends, offers)

    return make


def serve_joined_gateway(
    config: Config,
    model: str,
    engines: Sequence[str],
    buffer: str,
    callers: Credentials,
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Credentials | None = None,
    ready_file: str | Path | None = None,
    advertise: str = "",
) -> None:
    """Run a gateway that has joined a run until it is told to stop.

    credentials: with which it calls buffer and engines. callers: of those who ask it for episodes.
    """
    assert credentials is not None
    offers = Offers(config.rollout.lease_s)
    name = f"{socket.gethostname()}-{os.getpid()}"
    service = RolloutService(
        config, model, engines, (), buffer, credentials, name, make_players=offering(offers)
    )
    assert isinstance(service.players, Agents)
    local = service.players.local

    def announced(url: str) -> None:
        # Nobody is offered an episode before this address is served.
        local.url = url

    start_tracing("rollout")
    try:
        serve(
            create_joined_gateway_app(service, callers.access("gateway")),
            host,
            port,
            ready_file,
            announced,
            advertise,
        )
    finally:
        stop_tracing()
