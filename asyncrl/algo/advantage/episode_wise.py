"""Group baselines over episodes where an episode gives several rows, as that of an agent with sub-agents does.

Over rows an episode of many branches outweighs one of few: a success in one row beside a failure in five gives GRPO
+2.04 and five times -0.41 in place of equal and opposite advantages.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from asyncrl.algo.advantage.steps import first_rows
from asyncrl.algo.advantage_batch import AdvantageBatch, AdvantageOutputs
from asyncrl.algo.groups import group_index, group_mean
from asyncrl.algo.ops import to_tokens


def episode_wise(
    advantage_fn: Callable[[AdvantageBatch], Tensor | AdvantageOutputs], batch: AdvantageBatch
) -> Tensor | AdvantageOutputs:
    """[B,T] advantages: `advantage_fn` on one row an episode, with the mean return of its rows, for all of its rows.

    advantage_fn: gives a row one number, from the returns of its group.
    """
    if batch.rollouts is None:
        return advantage_fn(batch)
    keys = list(zip(batch.group.tolist(), batch.rollouts, strict=True))
    episode = group_index(keys, batch.group.device)
    once = first_rows(episode)
    if bool(once.all()):
        return advantage_fn(batch)
    each = AdvantageBatch(
        rewards=group_mean(batch.returns, episode)[once],
        group=batch.group[once],
        mask=torch.ones_like(batch.group[once], dtype=torch.bool).unsqueeze(-1),
        current_version=batch.current_version,
    )
    found = advantage_fn(each)
    outputs = found if isinstance(found, AdvantageOutputs) else AdvantageOutputs(found)
    keep = None if outputs.keep is None else outputs.keep[episode]
    return AdvantageOutputs(
        to_tokens(outputs.advantages[:, 0][episode], batch.mask), keep=keep, metrics=outputs.metrics
    )
