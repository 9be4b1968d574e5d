"""Reward terms computed from the shape of a trajectory and added to its reward."""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch


def overlong_penalty(
    lengths: Tensor, max_len: int, buffer: int, factor: float = 1.0, clamp: bool = True
) -> Tensor:
    """[B] `min(-(L - (max_len - buffer)) / buffer · factor, 0)` (DAPO, arXiv 2503.14476).

    `clamp` keeps it above `-factor`; verl and AReaL do not clamp, since lengths never exceed `max_len` there.
    """
    if buffer <= 0 or buffer > max_len:
        raise ValueError(f"buffer must be in 1..max_len ({max_len}), got {buffer}")
    excess = lengths - (max_len - buffer)
    penalty = (-excess / buffer * factor).clamp(max=0)
    return penalty.clamp(min=-factor) if clamp else penalty


def overlong_soft(
    batch: AdvantageBatch, *, max_len: int, buffer: int = 4096, factor: float = 1.0, clamp: bool = True
) -> Tensor:
    """[B] the penalty on the number of sampled tokens."""
    return overlong_penalty(batch.lengths.to(batch.rewards.dtype), max_len, buffer, factor, clamp)
