"""Multi-agent groups: agent-wise (Dr.MAS, M-GRPO) or over whole rollouts.

    agent:      A = (R - mean) / (std + eps) over all invocations of the same agent on the same prompt
    trajectory: scores averaged per rollout, then standardised over the prompt's rollouts

Sources: Dr.MAS (ddof 1, eps 1e-6); M-GRPO arXiv 2511.13288, whose sub-agents are grouped the same way and
then aligned to a fixed number of invocations per rollout (`align_invocations`). Lone groups get 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage.steps import first_rows
from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.groups import group_index, group_mean
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import to_tokens


def agent_wise(scores: Tensor, prompt: Tensor, agent: Tensor, ddof: int = 1, eps: float = 1e-6) -> Tensor:
    """[N] z-scores inside (prompt, agent)."""
    group = group_index(list(zip(prompt.tolist(), agent.tolist(), strict=True)), scores.device)
    return grpo_scores(scores, group, ddof, eps)


def trajectory_wise(
    scores: Tensor, prompt: Tensor, rollout: Tensor, ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """[N] z-score of each row's rollout mean among the prompt's rollouts, each counted once."""
    keys = group_index(list(zip(prompt.tolist(), rollout.tolist(), strict=True)), scores.device)
    means = group_mean(scores, keys)
    once = first_rows(keys)
    standardised = grpo_scores(means[once], prompt[once], ddof, eps)
    return standardised[keys]


def align_invocations(counts: Tensor, per_rollout: int, generator: torch.Generator) -> list[Tensor]:
    """For each rollout the indices of `per_rollout` of its invocations (M-GRPO).

    Too many are dropped at random without replacement; too few are all kept and filled up by random
    duplicates. A rollout without invocations gets none.
    """
    chosen = []
    for count in counts.tolist():
        if count >= per_rollout:
            rows = torch.randperm(count, generator=generator)[:per_rollout].sort().values
        elif count:
            extra = torch.randint(count, (per_rollout - count,), generator=generator)
            rows = torch.cat([torch.arange(count), extra])
        else:
            rows = torch.arange(0)
        chosen.append(rows)
    return chosen


@needs("agents")
def multi_agent(
    batch: AdvantageBatch,
    *,
    by: Literal["agent", "trajectory"] = "agent",
    eps: float = 1e-6,
    ddof: int = 1,
) -> Tensor:
    """[B,T] multi-agent advantages; every row is one invocation."""
    scores = batch.returns
    if by == "agent":
        agent = group_index(batch.need("agents"), scores.device)
        return to_tokens(agent_wise(scores, batch.group, agent, ddof, eps), batch.mask)
    rollouts = batch.rollouts or [str(row) for row in range(len(scores))]
    rollout = group_index(rollouts, scores.device)
    return to_tokens(trajectory_wise(scores, batch.group, rollout, ddof, eps), batch.mask)
