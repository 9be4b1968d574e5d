"""The gateway process: agents call it like OpenAI or Anthropic, and every call is recorded token for token.

    asyncrl serve gateway --model DIR --engines URL [URL ...]

`POST   /asyncrl/v1/episodes`             open an episode; the answer holds its API key and its reward key
`GET    /asyncrl/v1/episodes/ID`          its state
`POST   /asyncrl/v1/episodes/ID/reward`   reward of a call or of the episode
`POST   /asyncrl/v1/episodes/ID/finish`   end it; the answer holds its trajectories and counters
`DELETE /asyncrl/v1/episodes/ID`          forget it
`POST   /asyncrl/v1/keys`                 make a key whose calls are not recorded, for evaluation
`DELETE /asyncrl/v1/keys/ID`              end it

These take the service's token; `asyncrl.gateway.api` has the routes that take an episode's key. Bodies are JSON,
or msgpack where the content type says so; the answer is in the same form.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.config import Config
from asyncrl.credentials import Access, Credentials, own_credentials
from asyncrl.data.codec import pack, trajectory_to_map, unpack
from asyncrl.errors import InputError
from asyncrl.gateway.api import AgentApi
from asyncrl.gateway.body import read_body
from asyncrl.gateway.open_episodes import Episodes, NoEpisode
from asyncrl.gateway.recorded_episode import parse_spec
from asyncrl.gateway.sampler import Sampler
from asyncrl.images import data_uri
from asyncrl.run.model_folder import vocab_size
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.engine.router import EngineRouter
from asyncrl.services.http.app import RequestGuard, create_app, serve
from asyncrl.types import IMAGES, Trajectory

MAX_BODY_BYTES = 32 * 2**20
PACKED = "application/msgpack"


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
    # Outside `AccessGuard`, since agents have keys instead of the service's token, but behind `RequestGuard`.
    app.add_middleware(AgentApi, episodes=episodes, max_body_bytes=MAX_BODY_BYTES)
    app.add_middleware(RequestGuard, hosts=app.state.hosts, max_body_bytes=MAX_BODY_BYTES)
    registry = CollectorRegistry()
    registry.register(_Metrics(episodes))

    @app.get("/asyncrl/v1/status")
    async def status() -> dict[str, Any]:
        counters = dict(episodes.counters)
        return {"episodes": len(episodes), "counters": counters, "engines": router.status()}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    _add_episode_routes(app, episodes)
    _add_key_routes(app, episodes)
    return app


def _add_episode_routes(app: FastAPI, episodes: Episodes) -> None:
    @app.post("/asyncrl/v1/episodes")
    async def open_episode(request: Request) -> Response:
        episode = episodes.open(parse_spec(await _body(request)))
        return _reply(request, {"id": episode.id, "key": episode.key, "reward_key": episode.reward_key})

    @app.get("/asyncrl/v1/episodes/{episode_id}")
    async def show(request: Request, episode_id: str) -> Response:
        return _reply(request, episodes.by_id(episode_id).describe())

    @app.post("/asyncrl/v1/episodes/{episode_id}/reward")
    async def reward(request: Request, episode_id: str) -> Response:
        episode = episodes.by_id(episode_id)
        episode.add_reward(await _body(request))
        return _reply(request, {"reward": episode.describe()["reward"]})

    @app.post("/asyncrl/v1/episodes/{episode_id}/finish")
    async def finish(request: Request, episode_id: str) -> Response:
        body = await _body(request)
        episode = episodes.by_id(episode_id)
        trajectories, summary = episode.finish(body)
        episodes.ended(episode)
        form = trajectory_to_map if _packed(request) else trajectory_to_json
        return _reply(request, {"trajectories": [form(t) for t in trajectories], "summary": summary})

    @app.delete("/asyncrl/v1/episodes/{episode_id}")
    async def forget(request: Request, episode_id: str) -> Response:
        episodes.drop(episodes.by_id(episode_id))
        return _reply(request, {})


def _add_key_routes(app: FastAPI, episodes: Episodes) -> None:
    @app.post("/asyncrl/v1/keys")
    async def open_key(request: Request) -> Response:
        opened = episodes.open_key()
        return _reply(request, {"id": opened.id, "key": opened.key})

    @app.delete("/asyncrl/v1/keys/{key_id}")
    async def drop_key(request: Request, key_id: str) -> Response:
        episodes.drop_key(key_id)
        return _reply(request, {})


class _Metrics:
    """Exports the sums over ended episodes to Prometheus."""

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("asyncrl_gateway_open_episodes", "episodes open", value=len(self.episodes))
        names = ("opened", "ended", "expired", "calls", "sampled_tokens", "context_tokens", "cached_tokens")
        checks = ("rendered_turns", "retokenized_tokens", "undelivered_calls", "infrastructure_errors")
        for name in (*names, *checks):
            value = self.episodes.counters[name]
            yield CounterMetricFamily(f"asyncrl_gateway_{name}", f"{name} of ended episodes", value=value)


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """The codec's map with lists instead of raw arrays, and data URIs instead of raw images."""
    plain = trajectory_to_map(trajectory)
    for name in ("token_ids", "loss_mask", "behavior_logprobs", "versions"):
        plain[name] = getattr(trajectory, name).tolist()
    if IMAGES in trajectory.extras:
        plain["image_files"] = {image.key: data_uri(image.data) for image in trajectory.extras[IMAGES]}
    return plain


def _packed(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith(PACKED)


async def _body(request: Request) -> dict[str, Any]:
    raw = await request.body()
    if not _packed(request):
        return read_body(raw) if raw else {}
    body = unpack(raw)
    if not isinstance(body, dict):
        raise InputError(f"body: must be a map, got {type(body).__name__}")
    return body


def _reply(request: Request, body: dict[str, Any]) -> Response:
    return Response(pack(body), media_type=PACKED) if _packed(request) else JSONResponse(body)


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
