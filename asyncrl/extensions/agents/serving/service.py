"""The gateway process: agents call it like OpenAI or Anthropic, and every call is recorded token for token.

    asyncrl serve gateway --model DIR --engines URL [URL ...]

`POST   /asyncrl/v1/episodes`             open an episode; the answer holds its API key and its reward key
`GET    /asyncrl/v1/episodes/ID`          its state
`POST   /asyncrl/v1/episodes/ID/reward`   reward of a call or of the episode
`POST   /asyncrl/v1/episodes/ID/finish`   end it; the answer holds its trajectories and counters
`DELETE /asyncrl/v1/episodes/ID`          forget it
`POST   /asyncrl/v1/keys`                 make a key whose calls are not recorded, for evaluation
`DELETE /asyncrl/v1/keys/ID`              end it

These take the service's token; `gateway.api` has the routes that take an episode's key. Bodies are JSON,
or msgpack where the content type says so; the answer is in the same form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.config import Config
from asyncrl.credentials import Access, Credentials, own_credentials
from asyncrl.extensions.agents.gateway.metrics import EpisodeMetrics
from asyncrl.extensions.agents.gateway.open_episodes import Episodes, NoEpisode
from asyncrl.extensions.agents.gateway.owner_api import (
    EPISODES,
    MAX_BODY_BYTES,
    add_episode_routes,
    finish,
    owner_body,
    reply,
)
from asyncrl.extensions.agents.gateway.recorded_episode import parse_spec
from asyncrl.extensions.agents.gateway.sampler import Sampler
from asyncrl.extensions.agents.serving.agent_api import add_agent_api
from asyncrl.run.model_folder import vocab_size
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.router import EngineRouter
from asyncrl.services.http.app import create_app, serve
from asyncrl.services.http.metrics import add_metrics


def create_gateway_app(episodes: Episodes, router: EngineRouter, access: Access) -> FastAPI:
    """Return the HTTP app. It closes `router` at its end."""

    @asynccontextmanager
    async def clients() -> AsyncIterator[None]:
        yield
        await router.close()

    app = create_app(
        "asyncrl gateway",
        access,
        {"": {"worker"}},
        MAX_BODY_BYTES,
        {NoEpisode: 404},
        background={"reaper": episodes.reap},
        lifespan=clients,
    )
    add_agent_api(app, episodes)
    add_metrics(app, EpisodeMetrics(episodes))

    @app.get("/asyncrl/v1/status")
    async def status() -> dict[str, Any]:
        counters = dict(episodes.counters)
        return {"episodes": len(episodes), "counters": counters, "engines": router.status()}

    _add_owner_routes(app, episodes)
    _add_key_routes(app, episodes)
    return app


def _add_owner_routes(app: FastAPI, episodes: Episodes) -> None:
    add_episode_routes(app, episodes)

    @app.post(EPISODES)
    async def open_episode(request: Request) -> Response:
        episode = episodes.open(parse_spec(await owner_body(request)))
        return reply(request, {"id": episode.id, "key": episode.key, "reward_key": episode.reward_key})

    @app.post(f"{EPISODES}/{{episode_id}}/finish")
    async def end(request: Request, episode_id: str) -> Response:
        body = await owner_body(request)
        return finish(request, episodes, episodes.by_id(episode_id), body)

    @app.delete(f"{EPISODES}/{{episode_id}}")
    async def forget(request: Request, episode_id: str) -> Response:
        episodes.drop(episodes.by_id(episode_id))
        return reply(request, {})


def _add_key_routes(app: FastAPI, episodes: Episodes) -> None:
    @app.post("/asyncrl/v1/keys")
    async def open_key(request: Request) -> Response:
        opened = episodes.open_key()
        return reply(request, {"id": opened.id, "key": opened.key})

    @app.delete("/asyncrl/v1/keys/{key_id}")
    async def drop_key(request: Request, key_id: str) -> Response:
        episodes.drop_key(key_id)
        return reply(request, {})


def serve_gateway(
    config: Config,
    model: str,
    engines: Sequence[str],
    host: str = "127.0.0.1",
    port: int = 0,
    credentials: Credentials | None = None,
    ready_file: str | Path | None = None,
    advertise: str = "",
) -> None:
    """Run a gateway until it is told to stop."""
    credentials = credentials or own_credentials()
    token, turn_s = credentials.bearer("engine"), config.rollout.episode_timeout_s
    size = vocab_size(model)
    router = EngineRouter([EngineClient(url, token, turn_s, vocab_size=size) for url in engines])
    renderer = load_renderer(model, config.model.chat_template_args, config.model.chat_template)
    parse, split = load_format(config.model.tool_format, config.model.reasoning_format, renderer)
    model_config = config.model
    reread = partial(load_format, model_config.tool_format, model_config.reasoning_format)
    sampler = Sampler(router, renderer, parse, split=split, reread=reread)
    app = create_gateway_app(Episodes(sampler), router, credentials.access("gateway"))
    serve(app, host=host, port=port, ready_file=ready_file, advertise=advertise)
