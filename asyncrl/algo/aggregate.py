"""Token losses to one scalar, on a micro-batch, with the counts of the whole step.

Every mode is a weight per sequence: `loss = Σ_i weight_i Σ_t m ℓ`. A mode is a function
`mode(lengths_b, totals, group_b) -> weight_b`, where the counts come from `Totals`, never from the
micro-batch; so the micro-batch losses sum, over micro-batches and ranks, to exactly the full-batch loss. A
fully masked row counts as no sequence (verl), except in the modes that divide by rows (TRL).

| mode | formula | used by |
|---|---|---|
| token_mean | Σ m ℓ / N | DAPO, verl, AReaL, prime-rl, TRL `dapo` and `bnpo` |
| token_sum | Σ m ℓ | scaled elsewhere |
| seq_mean_token_mean | mean_i (Σ_t m ℓ / L_i) | GRPO, GSPO |
| seq_mean_token_sum | mean_i Σ_t m ℓ | REINFORCE |
| seq_mean_token_sum_norm | mean_i Σ_t m ℓ / H | Dr.GRPO (verl) |
| trl_grpo | Σ_i (Σ_t m ℓ / max(L_i, 1)) / rows | TRL `grpo` |
| trl_dr_grpo | Σ m ℓ / (rows · H) | TRL `dr_grpo` |
| row_mean_token_sum | Σ m ℓ / rows | PipelineRL |
| prompt_mean | mean over prompts of the token mean inside the prompt | SkyRL |
| prompt_mean_token_sum | Σ m ℓ / prompts | pairwise losses |
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algo.inputs import Totals

Aggregation = Callable[[Tensor, Totals, Tensor | None], Tensor]


def aggregate(
    mode: Aggregation, token_loss: Tensor, mask: Tensor, totals: Totals, group: Tensor | None = None
) -> Tensor:
    """Share of the step's loss that `token_loss` [B,T] contributes; `group` [B] only for prompt modes."""
    lengths = mask.sum(-1).to(token_loss.dtype)
    return ((token_loss * mask).sum(-1) * mode(lengths, totals, group)).sum()


def token_mean(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """Every token weighs the same, whatever sequence it is in."""
    return _constant(lengths, 1.0 / _positive("num_tokens", totals))


def token_sum(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """No normalisation."""
    return torch.ones_like(lengths)


def seq_mean_token_mean(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """Every sequence weighs the same; tokens of long sequences weigh less."""
    return 1.0 / (lengths.clamp(min=1) * _positive("num_sequences", totals))


def seq_mean_token_sum(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """The gradient of sequence log-probabilities, averaged over sequences."""
    return _constant(lengths, 1.0 / _positive("num_sequences", totals))


def seq_mean_token_sum_norm(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """Divides by a constant length H, which must be configured: a padded width would differ per batch."""
    return seq_mean_token_sum(lengths, totals) / _positive("horizon", totals)


def trl_grpo(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """As `seq_mean_token_mean`, but a fully masked row counts as a sequence of loss zero."""
    return 1.0 / (lengths.clamp(min=1) * _positive("num_rows", totals))


def trl_dr_grpo(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """As `seq_mean_token_sum_norm`, but a fully masked row counts as a sequence."""
    return row_mean_token_sum(lengths, totals) / _positive("horizon", totals)


def row_mean_token_sum(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """Weight 1 / batch size for every token."""
    return _constant(lengths, 1.0 / _positive("num_rows", totals))


def prompt_mean(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """Every prompt weighs the same.

    `group` indexes `Totals.prompt_tokens`, so a prompt may span micro-batches.
    """
    if group is None or totals.prompt_tokens is None:
        raise ValueError("prompt_mean needs the prompt index of each row and Totals.prompt_tokens")
    tokens = totals.prompt_tokens.to(lengths)[group]
    return 1.0 / (tokens.clamp(min=1) * _positive("num_prompts", totals))


def prompt_mean_token_sum(lengths: Tensor, totals: Totals, group: Tensor | None = None) -> Tensor:
    """Sum over tokens, mean over prompts: one pair per prompt for preference losses."""
    return _constant(lengths, 1.0 / _positive("num_prompts", totals))


def _constant(like: Tensor, value: float) -> Tensor:
    return torch.full_like(like, value)


def _positive(name: str, totals: Totals) -> float:
    count = getattr(totals, name)
    if count <= 0:
        raise ValueError(f"this aggregation needs Totals.{name} > 0, got {count}")
    return count
