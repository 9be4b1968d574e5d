"""A value head: what a critic reads from hidden states, on a trunk of its own or on the policy's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.train.models.policy import scatter
from asyncrl.train.models.prefix_tree import PrefixTree

VALUES = ("values", "end_values")
"""What a value head gives: see `read_values`."""
DETACHED = "detached_values"
"""Asks a head on the policy's trunk for these without a gradient into the trunk."""
HEAD = "value_head"
"""The name of the module."""


class ValueHead(nn.Linear):
    """Implements `TrunkHead`."""

    def read(
        self, want: tuple[str, ...], hidden: Tensor, tree: PrefixTree | None, target: Tensor
    ) -> dict[str, Tensor]:
        """See `TrunkHead`: `VALUES`, where `want` has `values` or `DETACHED`."""
        if not {"values", DETACHED} & set(want):
            return {}
        return read_values(self, hidden.detach() if DETACHED in want else hidden, tree, target)


def read_values(head: nn.Module, hidden: Tensor, tree: PrefixTree | None, mask: Tensor) -> dict[str, Tensor]:
    """Return what a value head reads from hidden states [B,T,H], or [N,H] of a tree's nodes.

    `values` [B,T]: `values[b, t]` is read one position earlier; it is the value of the state in which token t was
    chosen. `end_values` [B] is read at the last sampled token: the value of what follows it.
    """
    after = head(hidden).squeeze(-1).float()
    if tree is not None:
        if tree.group is not None:
            mine = tree.mine(torch.arange(len(tree.token_ids), device=after.device))
            after = tree.group.join(after[: int(mine.sum())], mine)
        after = after[tree.rows]
    positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask, positions, 0).amax(-1)
    return {
        "values": scatter(after[:, :-1][mask[:, 1:]], mask),
        "end_values": after[torch.arange(len(last), device=mask.device), last],
    }


def new_head(model: Any) -> ValueHead:
    """Return a value head for a model of transformers that says 0."""
    head = ValueHead(model.config.get_text_config().hidden_size, 1, dtype=model.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
