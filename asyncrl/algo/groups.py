"""Statistics inside groups of rows: [N] values and [N] integer group indices in, [N] gathered statistics out.

A group's mean is clamped to the group's range. Rounding could otherwise move the mean of equal numbers off
them, and dividing by a tiny standard deviation would turn that into an advantage.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


def group_index(keys: Sequence[Hashable], device: torch.device | None = None) -> Tensor:
    """[N] integer index of each key, numbered in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.long, device=device)


def dense(group: Tensor) -> Tensor:
    """Group indices renumbered 0..P-1."""
    return torch.unique(group, return_inverse=True)[1]


def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """[N] sum over each row's group."""
    g = dense(group)
    return torch.zeros_like(x).index_add(0, g, x)[g]


def group_size(group: Tensor) -> Tensor:
    """[N] number of rows in each row's group."""
    g = dense(group)
    return torch.bincount(g)[g]


def group_mean(x: Tensor, group: Tensor, weights: Tensor | None = None) -> Tensor:
    """[N] mean over each row's group, optionally weighted; exact for groups of equal values."""
    w = torch.ones_like(x) if weights is None else weights.to(x.dtype)
    total = group_sum(w, group)
    mean = group_sum(w * x, group) / torch.where(total > 0, total, 1.0)
    low, high = group_range(x, group)
    return torch.minimum(torch.maximum(mean, low), high)


def group_range(x: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """[N] smallest and largest value of each row's group."""
    g = dense(group)
    low = torch.zeros_like(x).scatter_reduce(0, g, x, "amin", include_self=False)
    high = torch.zeros_like(x).scatter_reduce(0, g, x, "amax", include_self=False)
    return low[g], high[g]


def group_std(x: Tensor, group: Tensor, ddof: int) -> Tensor:
    """[N] standard deviation over each row's group; 0 where fewer than `ddof + 1` rows."""
    centred = x - group_mean(x, group)
    return (group_sum(centred**2, group) / (group_size(group) - ddof).clamp(min=1)).sqrt()


def leave_one_out_deviation(x: Tensor, group: Tensor) -> Tensor:
    """[N] `x_i - mean of the others = n/(n-1) (x_i - mean)`; 0 for singletons."""
    n = group_size(group).to(x.dtype)
    return torch.where(n > 1, n / (n - 1).clamp(min=1), 0.0) * (x - group_mean(x, group))


def apply_singleton_rule(advantage: Tensor, raw: Tensor, group: Tensor, rule: str) -> Tensor:
    """Replace the advantage of groups of one row: `rule` "zero" gives 0, "raw" gives `raw`."""
    if rule not in ("zero", "raw"):
        raise ValueError(f"singleton must be 'zero' or 'raw', got {rule!r}")
    alone = group_size(group) == 1
    return torch.where(alone, raw if rule == "raw" else torch.zeros_like(raw), advantage)
