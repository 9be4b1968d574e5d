"""The process of a reward model in a folder.

    asyncrl serve reward_model --model FOLDER

`POST /v1/score` takes what a judge of `kind = "score"` is asked: {"items": [{"messages": [...]}, ...]}, and answers

    {"scores": [0.3, {"error": "..."}, ...], "cut": [1, ...]}

with a number for each conversation, or an object of numbers by label where the head has several outputs. `cut` has the
places of those that are longer than the model reads. Other keys of an item are not read.
"""

from __future__ import annotations

import asyncio
import logging
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from fastapi import FastAPI, Request

from asyncrl.credentials import Access
from asyncrl.errors import InputError
from asyncrl.extensions.judge.reward_model import read_reward_model
from asyncrl.extensions.judge.scoring_model import Scored, ScoringModel
from asyncrl.process_hooks import set_threads
from asyncrl.services.command import Address
from asyncrl.services.http.app import create_app
from asyncrl.types import Message

log = logging.getLogger("asyncrl.judge")

MAX_BODY_BYTES = 256 * 2**20
MAX_ITEMS = 1024
ROLES = {"": {"worker"}}


class RewardModelService:
    """The model, and one thread that runs it."""

    def __init__(self, model: ScoringModel) -> None:
        self.model = model
        self.scored = self.cut = self.refused = 0
        self._thread = ThreadPoolExecutor(1, "reward-model")

    async def score(self, conversations: list[list[Message]]) -> dict[str, Any]:
        """Return the answer to a request."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._thread, self.model.score, conversations
        )
        scored = {place: one for place, one in enumerate(found) if isinstance(one, Scored)}
        cut = [place for place, one in scored.items() if one.cut]
        self.scored += len(scored)
        self.refused += len(found) - len(scored)
        if cut and not self.cut:
            first = scored[cut[0]]
            log.warning(
                "a conversation of %d tokens is longer than the %d that the model reads: its longest messages are cut "
                "in their middle; /v1/status counts such conversations",
                first.whole_tokens,
                self.model.described.context_tokens,
            )
        self.cut += len(cut)
        return {"scores": [self._said(one) for one in found], "cut": cut}

    def status(self) -> dict[str, Any]:
        """Return how many conversations were scored, how many of them were cut, and how many could not be read."""
        described = self.model.described
        return {
            "scored": self.scored,
            "cut": self.cut,
            "refused": self.refused,
            "labels": list(described.labels),
            "context_tokens": described.context_tokens,
        }

    def _said(self, one: Scored | str) -> float | dict[str, Any]:
        if isinstance(one, str):
            return {"error": one}
        if not all(map(math.isfinite, one.outputs)):
            return {"error": f"the model gives {one.outputs}"}
        if len(one.outputs) == 1:
            return one.outputs[0]
        return dict(zip(self.model.described.labels, one.outputs, strict=True))


def create_reward_model_app(service: RewardModelService, access: Access) -> FastAPI:
    """Return the HTTP app."""
    app = create_app("asyncrl reward model", access, ROLES, MAX_BODY_BYTES)

    @app.post("/v1/score")
    async def score(request: Request) -> dict[str, Any]:
        try:
            body = await request.json()
        except (ValueError, RecursionError) as error:
            raise InputError(f"body: not valid JSON: {error}") from error
        return await service.score(conversations_of(body))

    @app.get("/v1/status")
    async def status() -> dict[str, Any]:
        return service.status()

    return app


def conversations_of(body: Any) -> list[list[Message]]:
    """Return the messages of each item. Raises `InputError`."""
    items = body.get("items") if isinstance(body, dict) else None
    if not isinstance(items, list) or len(items) > MAX_ITEMS:
        raise InputError(f"items: must be a list of at most {MAX_ITEMS}, got {str(items)[:100]}")
    found = []
    for place, item in enumerate(items):
        messages = item.get("messages") if isinstance(item, dict) else None
        if not isinstance(messages, list) or not all(
            isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages
        ):
            raise InputError(f"items.{place}.messages: must be a list of messages with roles")
        found.append(messages)
    return found


def serve_reward_model(key: str, folder: str, threads: int, address: Address) -> None:
    """Run the process until it is told to stop. key: what names the folder. Raises `ConfigError`."""
    set_threads(threads)
    described = read_reward_model(key, folder)
    model = ScoringModel(described, "cuda" if torch.cuda.is_available() else "cpu")
    address.serve(
        create_reward_model_app(RewardModelService(model), address.credentials.access("reward_model"))
    )
