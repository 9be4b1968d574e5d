"""What rollout code needs of an engine: tokens in, tokens out, with log-probabilities and versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from asyncrl.types import Decoding


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
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What is shown to the engine or asked of it besides tokens, by the kind of extra (`data.token_extras`)."""
    version: int | None = None
    """The version of the adapter that samples, which the engine must hold; None for the newest."""


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
    extras: dict[str, Any] = field(default_factory=dict)
    """What else the engine reports of what it read and sampled, by the kind of extra (`data.token_extras`)."""
    engine: str = ""
    """Address of the engine that sampled all of it; "" where several did, or it is not known."""


def common_engine(parts: Iterable[str]) -> str:
    """Return the engine that sampled all parts of a turn, "" where several did, or it is not known."""
    different = set(parts)
    return different.pop() if len(different) == 1 else ""


def engines_of(turns: Sequence[str]) -> tuple[str, ...]:
    """Return the engines of an episode's turns in the form of `Trajectory.engines`."""
    if len(set(turns)) != 1:
        return tuple(turns)
    return (turns[0],) if turns[0] else ()


class Generator(Protocol):
    """An engine, a router over engines, or a stand-in for tests."""

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one turn.

        Raises `InfrastructureError` when no engine can serve, `InputError` when the request is refused.
        """
        ...
