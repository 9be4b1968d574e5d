"""Sequential updates of agents: one after the other, each with the product of what the earlier ones have changed.

    L_m = - E[ min(r_m M_m, clip(r_m) M_m) ],   M_m = A prod over earlier agents j of pi_new_j / pi_old_j

The agents of a rollout are updated by optimizer steps of their own. What an earlier agent now does more or less
often makes the rollout more or less likely, and weighs the later agents' advantages: each update improves on the team
as it has become.

Sources: MARFT, arXiv 2504.16129; the update and its factor are HAPPO's, arXiv 2109.11251. There a factor is of one
joint action; here agents take turns and a rollout has a trajectory of each, so it is of all that an agent said in the
rollout, and bounded by CAP (ours), as the product over many tokens is of great variance. The order is fixed, as in
MARFT: the main agent, then the others by name. HAPPO draws it anew in each step. Agents here share their weights.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

CAP = 2.0
"""What one agent's ratio in a rollout is bounded by, and its inverse from below."""


def update_order(agents: Sequence[str]) -> list[list[int]]:
    """Return the rows of each agent, in the order of the updates. agents: [B] names, "" for the main one."""
    return [[row for row, name in enumerate(agents) if name == agent] for agent in sorted(set(agents))]


def rollout_ratios(log_ratios: Tensor, rollouts: Sequence[Hashable]) -> dict[Hashable, float]:
    """Return pi_new / pi_old of what an agent said in each rollout, from 1 / CAP to CAP.

    log_ratios: [N] sum over the sampled tokens of each of the agent's rows. rollouts: [N] rollout of each row.
    """
    total: dict[Hashable, float] = {}
    for rollout, log_ratio in zip(rollouts, log_ratios.tolist(), strict=True):
        total[rollout] = total.get(rollout, 0.0) + log_ratio
    bound = math.log(CAP)
    return {rollout: math.exp(min(max(found, -bound), bound)) for rollout, found in total.items()}


def weights(ratios: dict[Hashable, float], rollouts: Sequence[Hashable]) -> Tensor:
    """[B] factors of later rows' advantages; 1 in rollouts in which the earlier agent said nothing."""
    return torch.tensor([ratios.get(rollout, 1.0) for rollout in rollouts], dtype=torch.float64)
