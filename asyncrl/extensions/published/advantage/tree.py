"""Credit in a tree of branching rollouts: each stretch between two forks is a node.

    V(n) = mean reward of the leaves below node n,  V(root) = mean reward of the group's leaves
    A(n) = ( (V(n) - V(root)) + (V(n) - V(parent of n)) ) / sqrt(leaves below n)

The first term is global, the second local; the divisor keeps a node that many leaves share from counting once for each.
Without branches it is twice the mean-centred reward. A branch's tokens before its fork are its parent's and masked
here, so every token is trained once.

Source: after TreeRL (arXiv 2506.11902), with the rewards of leaves in place of their correctness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_mean
from asyncrl.algo.needs import group_local, needs, zero_where_equal


def leaves_below(parents: list[int], branch_turns: list[int]) -> dict[tuple[int, int], list[int]]:
    """Return the leaves that pass through each node.

    A node is (row, first turn): it begins at the row's start or fork, or where one of the row's branches leaves it. Its
    leaves are the row itself and whatever branches off at a later turn of it, with all that branches off those.
    """
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        if parent >= 0:
            children.setdefault(parent, []).append(row)

    def whole(row: int) -> list[int]:
        return [row, *(leaf for child in children.get(row, []) for leaf in whole(child))]

    found = {}
    for row, parent in enumerate(parents):
        own = branch_turns[row] if parent >= 0 else 0
        forks = sorted({own, *(branch_turns[child] for child in children.get(row, []))})
        for start in forks:
            later = [child for child in children.get(row, []) if branch_turns[child] > start]
            found[row, start] = [row, *(leaf for child in later for leaf in whole(child))]
    return found


def tree_scores(
    rewards: Tensor, group: Tensor, parents: list[int], branch_turns: list[int]
) -> dict[tuple[int, int], float]:
    """Return the advantage of every node, by (row, first turn). `rewards`, `group` [B]."""
    leaves = leaves_below(parents, branch_turns)
    value = {node: _mean(rewards[below]) for node, below in leaves.items()}
    root = group_mean(rewards, group)
    scores = {}
    for (row, start), below in leaves.items():
        before = _node_before(leaves, row, start, parents[row], branch_turns[row])
        whole = float(root[row])
        local = whole if before is None else value[before]
        scores[row, start] = (2 * value[row, start] - whole - local) / math.sqrt(len(below))
    return scores


def _mean(x: Tensor) -> float:
    """The mean, exact for equal values."""
    return float(x.mean().clamp(x.min(), x.max()))


def _node_before(
    nodes: dict[tuple[int, int], list[int]], row: int, start: int, parent: int, fork: int
) -> tuple[int, int] | None:
    """Return the node that a node follows: the row's own earlier one, else the parent's that ends at the fork."""
    own = [first for r, first in nodes if r == row and first < start]
    if own:
        return row, max(own)
    if parent < 0:
        return None
    before = [first for r, first in nodes if r == parent and first < fork]
    return (parent, max(before)) if before else None


@needs("turns", "branches")
@group_local
@zero_where_equal("rewards")
def tree(batch: AdvantageBatch) -> Tensor:
    """[B,T] advantages, constant over each node's turns."""
    branches, turn_ids = batch.need("branches"), batch.need("turn_ids")
    rows = {name: row for row, (name, _, _) in enumerate(branches)}
    # A parent that is not in the batch leaves its branch standing alone.
    parents = [rows.get(above, -1) for _, above, _ in branches]
    forks = [turn for _, _, turn in branches]
    advantages = torch.zeros_like(batch.mask, dtype=batch.returns.dtype)
    scores = tree_scores(batch.returns, batch.group, parents, forks)
    for (row, start), score in sorted(scores.items()):
        # Later nodes of the row overwrite what follows them.
        advantages[row] = torch.where(turn_ids[row] >= start, score, advantages[row])
    return advantages * batch.mask
