"""Agents inside a rollout worker: a gateway of their own, and the players that run them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_formats import TurnFormat, load_format
from asyncrl.config import Config
from asyncrl.endpoint import in_url
from asyncrl.env.config_check import check_settings
from asyncrl.extensions.agents.gateway.agent_player import (
    MAX_RUNNING,
    AgentPlayer,
    AgentSettings,
    EpisodeHost,
    LocalHost,
)
from asyncrl.extensions.agents.gateway.agents import Agent, AgentElsewhere, gateway_hosts
from asyncrl.extensions.agents.gateway.api import AgentApi
from asyncrl.extensions.agents.gateway.export import MAX_TRAJECTORIES
from asyncrl.extensions.agents.gateway.offers import OfferingPlayer, Offers
from asyncrl.extensions.agents.gateway.open_episodes import Episodes
from asyncrl.extensions.agents.gateway.sampler import Sampler
from asyncrl.extensions.agents.harness.agent import load_any_agent
from asyncrl.extensions.agents.serving.client import GatewayClient
from asyncrl.extensions.agents.tasks import AGENT
from asyncrl.http_checks import Hosts
from asyncrl.rollout.elsewhere import Engines
from asyncrl.rollout.episode import EpisodeEnd
from asyncrl.rollout.player import EpisodePlayer
from asyncrl.services.http.app import RequestGuard

MAX_BODY_BYTES = 32 * 2**20
STOP_S = 5.0


class Agents:
    """Serves a worker's agents, and makes players that run them. Implements `rollout.elsewhere.Players`."""

    def __init__(
        self,
        config: Config,
        engines: Engines,
        renderer: ChatRenderer,
        turns: TurnFormat,
        token: str = "",
        ends: Sequence[EpisodeEnd] = (),
        offers: Offers | None = None,
    ) -> None:
        """offers: episodes are offered there, instead of the recipe's agent playing them; what that names need not be
        on this machine."""
        self.config = config
        self.ends = ends
        self.offers = offers
        self.agent: Agent | None = None
        if offers is None:
            check_settings(AGENT, config.env.config)
            self.agent = load_any_agent(config.env.config)
        model = config.model
        reread = partial(load_format, model.tool_format, model.reasoning_format)
        self.episodes = Episodes(
            Sampler(engines, renderer, turns.parse, config.max_tokens, turns.split, reread)
        )
        self.server: _Server | None = None
        self.running: list[asyncio.Task[None]] = []
        self.local = LocalHost(self.episodes, "")
        url = config.env.config.get("gateway") if offers is None else None
        self.host: EpisodeHost = GatewayClient(url, token) if url else self.local

    def player(self, temperature: float, seed: int | None) -> EpisodePlayer:
        """Return a player with the recipe's limits; `rollout.max_turns` bounds an episode's calls."""
        rollout = self.config.rollout
        settings = AgentSettings(
            temperature,
            seed,
            self.config.max_tokens,
            rollout.max_tokens_per_turn,
            rollout.max_turns,
            int(self.config.env.config.get("max_running") or MAX_RUNNING),
            int(self.config.env.config.get("max_trajectories") or MAX_TRAJECTORIES),
            self.config.env.config.get("response_format", "ignore"),
        )
        if self.offers is not None:
            return OfferingPlayer(self.host, self.offers, settings, self.ends)
        assert self.agent is not None
        return AgentPlayer(self.host, self.agent, settings, self.ends)

    def limit(self, room: int, running: Sequence[str]) -> int:
        """See `Players`: as many as somebody asks for, where agents do."""
        if isinstance(self.agent, AgentElsewhere):
            return 0
        if self.offers is None:
            return room
        return min(room, len(running) + self.offers.wanted(running))

    async def start(self) -> None:
        """Serve the gateway, unless the recipe names another."""
        if self.host is not self.local:
            return
        bound, told = gateway_hosts(self.config.env.config)
        listener = socket.create_server(
            (bound, 0), family=socket.AF_INET6 if ":" in bound else socket.AF_INET, reuse_port=False
        )
        self.local.url = f"http://{in_url(told)}:{listener.getsockname()[1]}"
        app = RequestGuard(
            AgentApi(_not_found, self.episodes, MAX_BODY_BYTES), Hosts(bound, told), MAX_BODY_BYTES
        )
        options: Any = {"log_level": "warning", "access_log": False, "ws": "none", "lifespan": "off"}
        self.server = _Server(uvicorn.Config(app, timeout_graceful_shutdown=1, **options))
        self.running = [
            asyncio.create_task(self.server.serve(sockets=[listener])),
            asyncio.create_task(self.episodes.reap()),
        ]

    async def close(self) -> None:
        """Stop serving."""
        if isinstance(self.host, GatewayClient):
            await self.host.close()
        if self.server is not None:
            self.server.should_exit = True
            await asyncio.wait(self.running[:1], timeout=STOP_S)
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)


class _Server(uvicorn.Server):
    """Leaves signals to the worker."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await JSONResponse({"error": {"message": "not found"}}, 404)(scope, receive, send)
