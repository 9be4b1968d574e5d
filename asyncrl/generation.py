"""What rollout code needs of an engine: tokens in, tokens out, with log-probabilities and versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np

from asyncrl.types import Decoding, PlacedImage

MOVED = "abort"
"""Ends a turn whose engine went to sleep in the middle (vLLM's name); a router has another one sample the rest."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One turn to sample."""

    id: str
    """Unique among running requests; a repeated id after an answer is a new request."""
    token_ids: np.ndarray
    """[L] int32, the whole context."""
    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    """Makes sampling repeatable for equal contexts; None draws from the engine's generator."""
    stop_token_ids: tuple[int, ...] = ()
    session: str = ""
    """Requests of one session share a prefix and go to one engine."""
    min_version: int = 0
    """Engines that serve older weights must refuse."""
    agent: str = ""
    """The agent that takes the turn; "" is the main agent."""
    order: int = 0
    """Requests of lower order are scheduled first when there are more than an engine runs at once."""
    decoding: Decoding | None = None
    """None samples from the policy itself."""
    routed_from: int | None = None
    """Report the experts of the tokens from here on, if the engine records them; None asks for none."""
    commit: bool = False
    """Report commitments to the hidden states of the sampled tokens, if the engine makes them."""
    images: tuple[PlacedImage, ...] = ()
    """What some of the tokens stand for."""
    version: int | None = None
    """The version of the adapter that samples, which the engine must hold; None for the newest."""
    prefill: bool = False
    """Only compute the context, for the engine that gets the answer's ticket. The token of the answer is not used."""
    ticket: bytes = b""
    """To what an engine that prefills has computed of the context; good for one attempt."""


class Prefilled(StrEnum):
    """What came of a prompt that an engine was to compute for the one that decodes it (`engine.prefill`)."""

    HANDED = "handed"
    """It was computed, and its KV cache fetched."""
    AGAIN = "again"
    """It was computed, and once more by the engine that decodes: the weights had changed, or the fetch failed."""
    FAILED = "failed"
    """It was not computed: the engine failed."""
    LATE = "late"
    """It was not computed in time."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A sampled turn. The first three arrays have one length."""

    token_ids: np.ndarray
    """[N] int32, ending with the stop token when one was sampled."""
    logprobs: np.ndarray
    """[N] float32, under the distribution sampled from (temperature applied)."""
    versions: np.ndarray
    """[N] int32, the policy version that sampled each token."""
    finish_reason: str
    """"stop" or "length"."""
    cached_tokens: int = 0
    """Context tokens the engine found in its prefix cache."""
    top_logprobs: tuple[dict[int, float], ...] = ()
    """Per sampled token, log-probabilities of the likeliest and of itself, likeliest first; empty unless
    requested."""
    prompt_logprobs: tuple[dict[int, float], ...] = ()
    """The same per token of the context, at temperature 1; nothing for the first."""
    routed_experts: np.ndarray | None = None
    """[M,layers,K] uint8 or uint16, the experts of the tokens from `routed_from` to the last but one; None where the
    engine records none."""
    ticket: bytes = b""
    """To the KV cache of the context, of a request that was only to compute it."""

    prefills: tuple[Prefilled, ...] = ()
    """What came of each context that another engine was to compute for this one."""
    commitments: tuple[bytes, ...] = ()
    """To the hidden states that the tokens were sampled from, each for a chunk of them (`asyncrl.algo.commitments`);
    empty where the engine makes none."""
    engine: str = ""
    """Address of the engine that sampled all of it; "" where several did, or it is not known."""

    def followed_by(self, rest: Generated) -> Generated:
        """Return both as one turn, which ends as `rest` does, with commitments and prefills and without what else is
        reported of tokens on request."""
        return Generated(
            np.concatenate([self.token_ids, rest.token_ids]),
            np.concatenate([self.logprobs, rest.logprobs]),
            np.concatenate([self.versions, rest.versions]),
            rest.finish_reason,
            self.cached_tokens + rest.cached_tokens,
            prefills=self.prefills + rest.prefills,
            commitments=self.commitments + rest.commitments,
            engine=common_engine((self.engine, rest.engine)),
        )


def common_engine(parts: Iterable[str]) -> str:
    """Return the engine that sampled all parts of a turn, "" where several did, or it is not known."""
    different = set(parts)
    return different.pop() if len(different) == 1 else ""


def engines_of(turns: Sequence[str]) -> tuple[str, ...]:
    """Return the engines of an episode's turns in the form of `Trajectory.engines`."""
    if len(set(turns)) != 1:
        return tuple(turns)
    return (turns[0],) if turns[0] else ()


def remainder(request: GenerateRequest, had: Generated) -> GenerateRequest:
    """Return what is left to sample of a turn whose beginning is `had`."""
    newest = int(had.versions.max(initial=0))
    return replace(
        request,
        token_ids=np.concatenate([request.token_ids, had.token_ids]).astype(np.int32),
        max_tokens=request.max_tokens - len(had.token_ids),
        # The same seed would draw again what the beginning has drawn.
        seed=None if request.seed is None else request.seed + len(had.token_ids),
        min_version=max(request.min_version, newest) if request.version is None else request.min_version,
    )


class Generator(Protocol):
    """An engine, a router over engines, or a stand-in for tests."""

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn.

        Raises `InfrastructureError` when no engine can serve, `InputError` when the request is refused.
        """
        ...
