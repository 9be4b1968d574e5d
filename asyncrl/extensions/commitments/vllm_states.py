"""Recording the hidden states that tokens are sampled from, as an engine's commitments (`commitment`).

vLLM's model runner keeps the states it makes the logits of between the forward pass and sampling. There they are read,
for requests that ask for it. Only the largest entries of each chunk are kept, and those leave the engine's process when
the request has finished; the server's process makes the commitments of them.
"""

from __future__ import annotations

import copy
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.extensions.commitments.commitment import CHUNK_TOKENS, COMMITMENTS, encode, num_values
from asyncrl.weights.vllm_hooks import Asked, Engine, EngineHook
from asyncrl.weights.vllm_workers import add_call

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

COMMIT = "commit"
"""Among a request's `extra_args`: the key under which its states are recorded."""
MAX_FINISHED = 4096
"""Requests whose states nobody has taken that are remembered; of an aborted one nobody does."""
Chunk = tuple[int, bytes, bytes]
"""Number of tokens, places as int32, values as float32."""


@dataclass(slots=True)
class _Recorded:
    """The states of one request: closed chunks, and the newest tokens as rows of the steps that sampled them."""

    chunks: list[Chunk] = field(default_factory=list)
    rows: list[tuple[Tensor, int]] = field(default_factory=list)

    def add(self, states: Tensor, row: int) -> None:
        self.rows.append((states, row))
        # The scheduler may run one token ahead of what the request keeps, so a chunk is closed two tokens late.
        if len(self.rows) > CHUNK_TOKENS + 1:
            self._close(CHUNK_TOKENS)

    def end(self, num_tokens: int) -> list[Chunk]:
        """Return all chunks of the first `num_tokens` tokens."""
        while left := min(num_tokens - sum(chunk[0] for chunk in self.chunks), len(self.rows)):
            self._close(min(left, CHUNK_TOKENS))
        return self.chunks

    def _close(self, num_tokens: int) -> None:
        states = torch.stack([states[row] for states, row in self.rows[:num_tokens]]).float()
        del self.rows[:num_tokens]
        flat = states.flatten()
        places = flat.abs().topk(num_values(*states.shape), sorted=False).indices
        values = flat[places].cpu().numpy()
        self.chunks.append((num_tokens, places.int().cpu().numpy().tobytes(), values.tobytes()))


class States:
    """What one model runner has recorded, by the keys of requests."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Recorded] = OrderedDict()

    def record(self, key: str, states: Tensor, row: int) -> None:
        """Note that the next token of `key` is sampled from `states[row]`. states: [R,H]"""
        if key not in self._kept:
            self._kept[key] = _Recorded()
            if len(self._kept) > MAX_FINISHED:
                self._kept.popitem(last=False)
        self._kept[key].add(states, row)

    def take(self, key: str, num_tokens: int) -> list[Chunk]:
        """Return and forget the chunks of a request's first `num_tokens` tokens."""
        recorded = self._kept.pop(key, None)
        return recorded.end(num_tokens) if recorded is not None else []


def record_states() -> None:
    """Have vLLM's model runner record the states of requests that ask for it, and its workers hand them out."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    sample: Any = GPUModelRunner.sample_tokens

    def sample_tokens(self: Any, *rest: Any) -> Any:
        if (step := self.execute_model_state) is not None:
            for row, name in enumerate(self.input_batch.req_ids):
                key = _key(self.requests[name])
                # A prompt that is prefilled in parts samples nothing before its last one.
                if key and not self.discard_request_mask.np[row]:
                    states_of(self).record(key, step.sample_hidden_states, row)
        return sample(self, *rest)

    setattr(GPUModelRunner, "sample_tokens", sample_tokens)  # noqa: B010 - mypy forbids to assign it
    add_call("commitments_take", commitments_take)


def states_of(runner: Any) -> States:
    """Return what a model runner has recorded."""
    found: States = runner.__dict__.setdefault("_recorded_states", States())
    return found


def commitments_take(worker: Any, key: str, num_tokens: int) -> list[Chunk]:
    """Return what was recorded in a worker of the hidden states of a request's tokens."""
    return states_of(worker.model_runner).take(key, num_tokens)


class CommittedStates(EngineHook):
    """Answers with commitments, of an engine that records states."""

    async def read(self, engine: Engine, asked: Asked) -> None:
        """See `EngineHook`."""
        if asked.request.get("commit"):
            key = asked.notes[COMMIT] = uuid.uuid4().hex
            asked.sampling = copy.copy(asked.sampling)
            asked.sampling.extra_args = {**(asked.sampling.extra_args or {}), COMMIT: key}

    async def report(
        self, engine: Engine, asked: Asked, final: RequestOutput, answer: dict[str, Any]
    ) -> None:
        """See `EngineHook`."""
        if key := asked.notes.get(COMMIT):
            num_tokens = len(final.outputs[0].token_ids)
            # The ranks of an engine have the same states.
            chunks, *_ = await engine.collective_rpc("commitments_take", args=(key, num_tokens))
            answer[COMMITMENTS] = commitments_of(chunks)


def commitments_of(chunks: list[Chunk]) -> list[bytes]:
    """Return the commitments of a request."""
    return [
        encode(
            num_tokens, np.frombuffer(places, np.int32).astype(np.int64), np.frombuffer(values, np.float32)
        )
        for num_tokens, places, values in chunks
    ]


def _key(request: Any) -> str:
    sampling = request.sampling_params
    return str((sampling.extra_args or {}).get(COMMIT, "")) if sampling is not None else ""
