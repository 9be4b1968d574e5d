"""GDPO: normalise every reward component inside the group first, then sum, then normalise over the batch.

    z_k = (R_k - mean_g R_k) / (std_g R_k + eps_group),  s = Σ_k w_k z_k
    samples: A = (s - mean_B s) / (std_B s + eps_batch)          (NVlabs, TRL)
    tokens:  A = whiten(s broadcast to tokens)                   (verl: long responses weigh more)

Source: arXiv 2601.05242, ddof 1 throughout. A component without variance in the group contributes 0. A NaN
component is absent: it is left out of its group's statistics and contributes 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean, group_std
from asyncrl.algo.needs import needs, zero_where_equal
from asyncrl.algo.normalize import standardise
from asyncrl.algo.ops import to_tokens, whiten


def normalise_components(rewards: Tensor, group: Tensor, eps: float, ddof: int = 1) -> Tensor:
    """[B,K] per-component group z-scores of rewards [B,K]."""
    columns = [_column(rewards[:, k], group, eps, ddof) for k in range(rewards.shape[1])]
    return torch.stack(columns, dim=1)


def _column(x: Tensor, group: Tensor, eps: float, ddof: int) -> Tensor:
    present = ~torch.isnan(x)
    if bool(present.all()):
        return (x - group_mean(x, group)) / (group_std(x, group, ddof) + eps)
    scores = torch.zeros_like(x)
    scores[present] = _column(x[present], group[present], eps, ddof)
    return scores


def combine_components(scores: Tensor, weights: Tensor) -> Tensor:
    """[B] weighted sum of component scores [B,K]."""
    return (scores * weights.to(scores.dtype)).sum(1)


@needs("components")
@zero_where_equal("components")
def gdpo(
    batch: AdvantageBatch,
    *,
    weights: dict[str, float] | None = None,
    level: Literal["sample", "token"] = "sample",
    eps_group: float = 1e-4,
    eps_batch: float = 1e-4,
    ddof: int = 1,
) -> Tensor:
    """[B,T] GDPO advantages of `batch.components`; missing `weights` are 1."""
    if not batch.components:
        raise ValueError("gdpo needs AdvantageBatch.components, which is empty")
    unknown = sorted(set(weights or {}) - set(batch.components))
    if unknown:
        raise ValueError(f"gdpo: no component {unknown[0]!r}; the batch has {sorted(batch.components)}")
    names = sorted(batch.components)
    rewards = torch.stack([batch.components[n].to(batch.rewards.dtype) for n in names], 1)
    weight = rewards.new_tensor([(weights or {}).get(n, 1.0) for n in names])
    combined = combine_components(normalise_components(rewards, batch.group, eps_group, ddof), weight)
    if level == "token":
        return whiten(to_tokens(combined, batch.mask), batch.mask)
    return to_tokens(standardise(combined, eps_batch, ddof), batch.mask)
