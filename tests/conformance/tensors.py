"""JSON numbers to float64 tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from asyncrl.algo.groups import group_index
from asyncrl.algo.inputs import Totals, totals_of


def tensor(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def leaf(x: Any) -> Tensor:
    return tensor(x).requires_grad_()


def mask_of(x: Any) -> Tensor:
    return tensor(x).bool()


def keys(x: list) -> Tensor:
    """Group labels of any kind to integer indices."""
    return group_index([str(v) for v in x])


def singleton(params: dict) -> str:
    """Vectors describe the rule for groups of one in words that start with "raw" or "zero"."""
    return "raw" if str(params.get("singleton", "zero")).startswith("raw") else "zero"


def count_totals(mask: Tensor, group: Tensor | None = None, horizon: float = 0.0) -> Totals:
    """Counts of one whole batch: `mask` [B,T], `group` [B] prompt index of each row, numbered from 0."""
    return totals_of(mask.bool().sum(-1), group, horizon)
