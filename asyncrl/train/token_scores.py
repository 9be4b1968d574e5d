"""Hidden states to log-probabilities, entropies and divergences of tokens, without keeping the logits.

At a vocabulary of 152,000 the logits of 16,384 tokens take 9.3 GiB in float32, and autograd would keep them. Here they
are computed a chunk at a time, and once more in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asyncrl.algo.loss.distill import full_kl
from asyncrl.algo.next_token import next_token_scores

CHUNK_LOGITS = 2**26
"""Logits held at once: 441 tokens at a vocabulary of 152,000, 256 MiB in float32."""


@dataclass(frozen=True, slots=True)
class TeacherStates:
    """What a teacher says of the sampled tokens, before its vocabulary projection."""

    states: Tensor
    """[M,H] the teacher's hidden state before each sampled token, row by row (`PolicyModel.sampled_states`)."""
    head: nn.Module
    """Its vocabulary projection."""
    direction: str
    """The divergence wanted, see `asyncrl.algo.loss.distill.full_kl`."""


class Head:
    """The forward pass of a vocabulary projection, which may also hand itself to a function that uses it often.

    ZeRO-3 gathers a module's weight when the module is called, on all ranks together, while their numbers of chunks
    differ: one call must do for all chunks, with their backward passes.
    """

    def __init__(self, project: Callable[[Tensor], Tensor]) -> None:
        self.project = project

    def __call__(self, states: Tensor, use: Callable[..., Any] | None = None) -> Any:
        return self.project(states) if use is None else use(self.project, states)


def score_tokens(
    labels: Tensor,
    vocab_size: int,
    temperature: float,
    want: tuple[str, ...],
    teacher: TeacherStates | None,
    given: Tensor | None,
    project: Callable[[Tensor], Tensor],
    states: Tensor,
) -> dict[str, Tensor]:
    """Return `logp` [N] of `labels` [N] after `states` [N,H], and what `want` names, as `PolicyModel.forward` does.

    given: the teacher's states [N,H]; project: the vocabulary projection of the model. Both come last for `Head`.
    """

    def score(states: Tensor, labels: Tensor, given: Tensor | None) -> dict[str, Tensor]:
        logits = _tempered(project(states), temperature)
        scores = next_token_scores(logits, labels, "entropy" in want, "sum_pi_squared" in want)
        found = {name: value for name, value in scores._asdict().items() if value is not None}
        if "teacher_kl" in want:
            assert teacher is not None and given is not None
            with torch.no_grad():
                teacher_logits = _tempered(teacher.head(given), temperature)
            found["teacher_kl"] = full_kl(logits, teacher_logits, teacher.direction)
        return found

    chunk_tokens = max(1, CHUNK_LOGITS // vocab_size)
    # A single chunk is kept: computing it again would not lower the peak.
    recompute = torch.is_grad_enabled() and len(states) > chunk_tokens
    again = partial(checkpoint, score, use_reentrant=False, preserve_rng_state=False)
    parts: dict[str, list[Tensor]] = {}
    for start in range(0, max(1, len(states)), chunk_tokens):
        part = slice(start, start + chunk_tokens)
        told = states[part], labels[part], None if given is None else given[part]
        for name, values in (again(*told) if recompute else score(*told)).items():
            parts.setdefault(name, []).append(values)
    return {name: torch.cat(values) for name, values in parts.items()}


def _tempered(logits: Tensor, temperature: float) -> Tensor:
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature
