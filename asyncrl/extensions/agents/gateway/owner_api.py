"""Routes of a gateway for those who run the agents: an episode's state, its rewards and its end.

Bodies are JSON, or msgpack where the content type says so; the answer is in the same form.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from asyncrl.data.codec import pack, trajectory_to_map, unpack
from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.body import read_body
from asyncrl.extensions.agents.gateway.open_episodes import Episodes
from asyncrl.extensions.agents.gateway.recorded_episode import Episode
from asyncrl.images import data_uri
from asyncrl.types import IMAGES, Trajectory

MAX_BODY_BYTES = 32 * 2**20
PACKED = "application/msgpack"
EPISODES = "/asyncrl/v1/episodes"


def add_episode_routes(app: FastAPI, episodes: Episodes) -> None:
    """Add the routes that show an episode and reward its calls."""

    @app.get(f"{EPISODES}/{{episode_id}}")
    async def show(request: Request, episode_id: str) -> Response:
        return reply(request, episodes.by_id(episode_id).describe())

    @app.post(f"{EPISODES}/{{episode_id}}/reward")
    async def reward(request: Request, episode_id: str) -> Response:
        episode = episodes.by_id(episode_id)
        episode.add_reward(await owner_body(request))
        return reply(request, {"reward": episode.describe()["reward"]})


def finish(request: Request, episodes: Episodes, episode: Episode, body: dict[str, Any]) -> Response:
    """End an episode; return the answer, with its trajectories. Raises `InputError`."""
    trajectories, summary = episode.finish(body)
    episodes.ended(episode)
    form = trajectory_to_map if _packed(request) else trajectory_to_json
    return reply(request, {"trajectories": [form(t) for t in trajectories], "summary": summary})


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """The codec's map with lists instead of raw arrays, and data URIs instead of raw images."""
    plain = trajectory_to_map(trajectory)
    for name in ("token_ids", "loss_mask", "behavior_logprobs", "versions"):
        plain[name] = getattr(trajectory, name).tolist()
    if IMAGES in trajectory.extras:
        plain["image_files"] = {image.key: data_uri(image.data) for image in trajectory.extras[IMAGES]}
    return plain


async def owner_body(request: Request) -> dict[str, Any]:
    """Return the map in a request's body, empty without one. Raises `InputError`."""
    raw = await request.body()
    if not _packed(request):
        return read_body(raw) if raw else {}
    body = unpack(raw)
    if not isinstance(body, dict):
        raise InputError(f"body: must be a map, got {type(body).__name__}")
    return body


def reply(request: Request, body: dict[str, Any]) -> Response:
    """Return an answer in the form of its request."""
    return Response(pack(body), media_type=PACKED) if _packed(request) else JSONResponse(body)


def _packed(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith(PACKED)
