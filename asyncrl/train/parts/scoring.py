"""Log-probabilities of given tokens from any vLLM server, for a teacher or a reference that lives elsewhere.

The server's OpenAI-compatible `/v1/completions` with `prompt_logprobs` scores a whole trajectory in one prefill.
Prompt log-probabilities are those of the untempered distribution, so the rollout temperature must be 1.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import torch

from asyncrl.credentials import authorization
from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.http_clients import client
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import IMAGES, Trajectory

CONNECTIONS = 16
ATTEMPTS = 3


KEY = "ASYNCRL_SCORER_KEY"
"""Environment variable with the bearer key of the servers that `teacher.path` and `reference.path` may name."""


class EngineScorer:
    """Scores trajectories on a vLLM server at `url`. Without a token it takes the key in `ASYNCRL_SCORER_KEY`."""

    def __init__(self, url: str, token: str = "", timeout_s: float = 120.0) -> None:
        headers = authorization(token or os.environ.get(KEY, ""))
        self._client = client(url, base_url=url.rstrip("/"), headers=headers, timeout=timeout_s)
        self._model = ""

    def logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """Return on the first rank the log-probabilities of the sampled tokens. A collective.

        Raises what `score` does.
        """
        found = self.score(batch) if engine.rank == 0 else Ragged.full(np.zeros_like(batch.counts))
        # The others wait here for as long as the server takes.
        engine.barrier()
        return found

    def score(self, batch: StepBatch) -> Ragged:
        """Return the log-probabilities of the sampled tokens.

        Raises `InfrastructureError` naming the server when it does not answer.
        """
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            scored = list(pool.map(self._one, batch.trajectories))
        sampled = [values[t.loss_mask] for values, t in zip(scored, batch.trajectories, strict=True)]
        return Ragged(torch.from_numpy(np.concatenate(sampled)), batch.counts)

    def close(self) -> None:
        self._client.close()

    def _one(self, trajectory: Trajectory) -> np.ndarray:
        if IMAGES in trajectory.extras:
            raise ConfigError(
                f"{self._client.base_url}: a server is not sent images; give reference or teacher by its folder"
            )
        ids = [int(i) for i in trajectory.token_ids]
        body = {
            "model": self._served_model(),
            "prompt": ids,
            "max_tokens": 1,
            "temperature": 0.0,
            "prompt_logprobs": 0,
            "add_special_tokens": False,
        }
        choice = self._post("/v1/completions", body)["choices"][0]
        return read_prompt_logprobs(choice["prompt_logprobs"], ids, trajectory.loss_mask)

    def _served_model(self) -> str:
        if not self._model:
            self._model = self._request("GET", "/v1/models", None)["data"][0]["id"]
        return self._model

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        problem = ""
        for _ in range(ATTEMPTS):
            try:
                reply = self._client.request(method, path, json=body)
                if reply.status_code == 200:
                    return reply.json()
                problem = f"{reply.status_code}: {reply.text[:300]}"
                if reply.status_code < 500:
                    break
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
        raise InfrastructureError(
            f"{method} {str(self._client.base_url).rstrip('/')}{path} failed: {problem}"
        )


def read_prompt_logprobs(entries: Sequence[Any], token_ids: Sequence[int], mask: np.ndarray) -> np.ndarray:
    """Return [L] float32 from vLLM's list of `{token id: {"logprob": x, ...}}`, whose first entry is null."""
    values = np.zeros(len(token_ids), np.float32)
    for position in np.flatnonzero(mask):
        if position:
            values[position] = entries[position][str(token_ids[position])]["logprob"]
    return values
