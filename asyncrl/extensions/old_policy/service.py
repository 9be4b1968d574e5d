"""The old-policy process: scores sampled tokens under the versions that sampled them.

    asyncrl serve old_policy --folder runs/NAME --model DIR --buffer URL --weights-dir DIR

It looks at the groups that are ready in the buffer and scores them while others are still being sampled, so that the
trainer's question is answered from memory. `POST /v1/score` takes msgpack; see `messages`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import numpy as np
import torch
from fastapi import FastAPI, Request, Response

from asyncrl.config import Config
from asyncrl.credentials import Access
from asyncrl.data.codec import decode_group, pack
from asyncrl.errors import AsyncRLError, InputError, UnavailableError
from asyncrl.extensions.lora.adapter import adapters
from asyncrl.extensions.old_policy.messages import logprobs_to_map, rows_from_map
from asyncrl.extensions.old_policy.model import FOLDER, OldPolicyModel, Row, rows_of
from asyncrl.http_checks import MSGPACK
from asyncrl.process_hooks import set_threads
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.command import Address
from asyncrl.services.http.app import create_app
from asyncrl.train.models.loading import load_frozen

log = logging.getLogger("asyncrl.old_policy")

MAX_BODY_BYTES = 1024 * 2**20
LOOK_S = 2.0
"""How long one look at the buffer waits for groups."""
PAUSE_S = 0.2
"""Between two looks that showed nothing new."""
ROLES = {"/v1/score": {"trainer"}, "/v1/status": {"trainer"}}


class OldPolicy:
    """The model, one thread that runs it, and what it has scored.

    keep: sequences whose log-probabilities are kept for the trainer.
    """

    def __init__(self, model: OldPolicyModel, keep: int) -> None:
        self.model = model
        self.keep = keep
        self.scored_ahead = self.answered_from_memory = 0
        self._scored: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "old-policy")

    async def score(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """Return the log-probabilities of rows, [L] each. Raises `InputError` for a version without weights."""
        keys = [self._key(row) for row in rows]
        missing = list(dict.fromkeys(key for key in keys if key not in self._scored))
        if missing:
            chosen = [rows[keys.index(key)] for key in missing]
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, self.model.score, chosen)
            self._scored.update(zip(missing, found, strict=True))
        self.answered_from_memory += len(keys) - len(missing)
        answer = [self._scored[key] for key in keys]
        while len(self._scored) > max(self.keep, len(keys)):
            self._scored.popitem(last=False)
        return answer

    async def look_ahead(self, buffer: BufferClient) -> None:
        """Score the groups that are ready, for ever."""
        seen: list[str] = []
        while True:
            try:
                step = (await buffer.status())["version"]
                bodies, _ = await buffer.peek(step, seen, LOOK_S)
            except AsyncRLError as error:
                # Another version was committed meanwhile, or the buffer is being started again.
                log.debug("the buffer was not looked at: %s", error)
                bodies = []
            for body in bodies:
                group = decode_group(body)
                seen = [*seen, group.id][-self.keep :]
                try:
                    rows = rows_of(group)
                    await self.score(rows)
                    self.scored_ahead += len(rows)
                except InputError as error:
                    # A version that is not there any more: no step will train this group.
                    log.warning("group %s is not scored ahead: %s", group.id, error)
                except Exception:
                    # The trainer examines each group that it takes, and rejects one that cannot be trained.
                    log.exception("group %s cannot be scored", group.id)
            if not bodies:
                await asyncio.sleep(PAUSE_S)

    def counts(self) -> dict[str, int]:
        """Return how many sequences were scored before they were asked for, answered from memory, and are kept."""
        return {
            "scored_ahead": self.scored_ahead,
            "answered_from_memory": self.answered_from_memory,
            "kept": len(self._scored),
        }

    def _key(self, row: Row) -> bytes:
        stamps = [self.model.stamp(int(version)) for version in np.unique(row.versions[row.mask])]
        parts = (row.token_ids.tobytes(), row.mask.tobytes(), row.versions.tobytes(), repr(stamps).encode())
        return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def create_old_policy_app(policy: OldPolicy, access: Access, buffer: BufferClient | None = None) -> FastAPI:
    """Return the HTTP app; without a buffer it only answers."""

    async def look_ahead() -> None:
        assert buffer is not None
        try:
            await policy.look_ahead(buffer)
        finally:
            await buffer.close()

    background = {} if buffer is None else {"scoring ahead": look_ahead}
    app = create_app("asyncrl old policy", access, ROLES, MAX_BODY_BYTES, background=background)

    @app.post("/v1/score")
    async def score(request: Request) -> Response:
        try:
            body = msgpack.unpackb(await request.body())
        except ValueError as error:
            raise InputError(f"body: not valid msgpack: {error}") from error
        if not isinstance(body, dict):
            raise InputError("body: must be a map")
        found = await policy.score(rows_from_map(body))
        return Response(pack(logprobs_to_map(found)), media_type=MSGPACK)

    @app.get("/v1/status")
    async def status() -> dict[str, int]:
        return policy.counts()

    return app


def serve_old_policy(
    config: Config,
    model: str,
    buffer: str,
    weights_dir: Path,
    address: Address,
) -> None:
    """Run the process until it is told to stop. Raises `UnavailableError` without a model."""
    set_threads(config.run.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        loaded = load_frozen(model, config.model.dtype, adapters(config.lora, config.run.seed))
    except OSError as error:
        raise UnavailableError(f"{model}: cannot be loaded: {error}") from error
    scorer = OldPolicyModel(
        loaded, weights_dir / FOLDER, config.rollout.temperature, config.train.micro_batch_tokens, device
    )
    policy = OldPolicy(scorer, 2 * config.slots * config.rollout.group_size)
    client = BufferClient(buffer, address.credentials.bearer("buffer"), config.buffer_outage_s)
    app = create_old_policy_app(policy, address.credentials.access("old_policy"), client)
    address.serve(app)
