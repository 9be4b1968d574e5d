"""Multi-agent groups: agent-wise (Dr.MAS, M-GRPO) or over whole rollouts.

    agent:      A = (R - mean) / (std + eps) over all invocations of the same agent on the same prompt
    trajectory: scores averaged per rollout, then standardised over the prompt's rollouts

Sources: Dr.MAS (ddof 1, eps 1e-6); M-GRPO arXiv 2511.13288, whose sub-agents are grouped the same way and
then aligned to a fixed number of invocations per rollout (`invocations`). A repeated row counts by its advantage, which
is multiplied; the denominators count it once. The main agent (""), invoked once a rollout, is not aligned. Lone groups
get 0.
"""

from __future__ import annotations

import zlib
from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.advantage.grpo import grpo_scores
from asyncrl.algo.advantage.steps import first_rows
from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.groups import group_index, group_mean
from asyncrl.algo.needs import needs, zero_where_equal
from asyncrl.algo.ops import to_tokens

MAIN = ""
"""The name of an episode's main agent in a batch."""


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


def aligned_copies(prompt: list[int], rollouts: list[str], agents: list[str], per_rollout: int) -> Tensor:
    """[B] how often each row counts when every agent but the main one has `per_rollout` invocations a rollout.

    What is drawn depends on prompt, rollout and agent alone, so that all ranks and a resumed run draw the same.
    """
    rows: dict[tuple[int, str, str], list[int]] = {}
    for row, key in enumerate(zip(prompt, rollouts, agents, strict=True)):
        rows.setdefault(key, []).append(row)
    copies = torch.ones(len(prompt), dtype=torch.long)
    for key, invoked in rows.items():
        if key[2] == MAIN:
            continue
        generator = torch.Generator().manual_seed(zlib.crc32("/".join(map(str, key)).encode()))
        (chosen,) = align_invocations(torch.tensor([len(invoked)]), per_rollout, generator)
        copies[invoked] = torch.bincount(chosen, minlength=len(invoked))
    return copies


@needs("agents")
@zero_where_equal("rewards")
def multi_agent(
    batch: AdvantageBatch,
    *,
    by: Literal["agent", "trajectory"] = "agent",
    invocations: int | None = None,
    eps: float = 1e-6,
    ddof: int = 1,
) -> AdvantageOutputs:
    """[B,T] multi-agent advantages; every row is one invocation. `invocations` aligns those of `by` "agent"."""
    scores = batch.returns
    rollouts = batch.rollouts or [str(row) for row in range(len(scores))]
    if by == "agent":
        agents = batch.need("agents")
        copies = torch.ones_like(batch.group)
        if invocations is not None:
            if invocations < 1:
                raise ValueError(f"invocations must be at least 1, got {invocations}")
            copies = aligned_copies(batch.group.tolist(), rollouts, agents, invocations).to(scores.device)
        repeated = torch.arange(len(scores), device=scores.device).repeat_interleave(copies)
        agent = group_index(agents, scores.device)[repeated]
        each = agent_wise(scores[repeated], batch.group[repeated], agent, ddof, eps)
        advantages = torch.zeros_like(scores).index_add(0, repeated, each)
        return AdvantageOutputs(to_tokens(advantages, batch.mask), keep=copies > 0)
    rollout = group_index(rollouts, scores.device)
    return AdvantageOutputs(to_tokens(trajectory_wise(scores, batch.group, rollout, ddof, eps), batch.mask))
