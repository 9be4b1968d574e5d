"""Advantages of a whole batch, a few groups at a time where they depend on nothing beyond a row's group.

Estimators read padded tensors of sampled tokens. Taken group by group these are as wide as the longest row of a few
groups, and not of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageOutputs
from asyncrl.algo.metrics import Metrics, merge
from asyncrl.algo.objective import Objective
from asyncrl.train.step.auxiliary_models import StepTensors
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import StepBatch, to_advantage_batch

OF_TOKENS = [
    one.name for one in fields(AdvantageOutputs) if one.name not in ("advantages", "keep", "metrics")
]
"""What estimators may say of tokens for the loss."""
CELLS = 2**22
"""Padded numbers of one tensor at once: 16 MiB in float32."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `Objective.estimate` says of a batch."""

    advantages: Ragged
    keep: list[bool]
    """[B]"""
    metrics: Metrics
    others: dict[str, Ragged]
    """What else the estimator says of the sampled tokens, by its `LossInputs` name."""


def estimate_advantages(
    objective: Objective, batch: StepBatch, tensors: StepTensors, kl_coef: float
) -> Estimate:
    """Return the advantages of all rows. On the first rank, which has the batch.

    Raises ValueError when what all rows share is not finite.
    """
    shards = list(_shards(batch)) if objective.group_local else [list(range(batch.num_rows))]
    found = []
    for rows in shards:
        seen = to_advantage_batch(batch, tensors.for_advantages(rows), rows)
        found.append(objective.estimate(seen, kl_coef))

    def join(name: str) -> Ragged | None:
        parts: list[Tensor] = []
        for rows, one in zip(shards, found, strict=True):
            value: Tensor | None = getattr(one, name)
            if value is None:
                return None
            parts.append(Ragged.of_padded(value, batch.counts[rows]).values.float())
        return Ragged(torch.cat(parts), batch.counts)

    advantages = join("advantages")
    assert advantages is not None
    keep = [kept for rows, one in zip(shards, found, strict=True) for kept in _keep(one, len(rows))]
    others = {name: values for name in OF_TOKENS if (values := join(name)) is not None}
    return Estimate(advantages, keep, merge(one.metrics for one in found), others)


def _keep(found: AdvantageOutputs, num_rows: int) -> list[bool]:
    return [True] * num_rows if found.keep is None else found.keep.tolist()


def _shards(batch: StepBatch) -> Iterator[list[int]]:
    """Yield consecutive rows of whole groups, as many as `CELLS` allow. Rows of a group are adjacent."""
    rows: list[int] = []
    widest = 0
    for start, end in _groups(batch):
        wide = max(widest, int(batch.counts[start:end].max()))
        if rows and (end - rows[0]) * wide > CELLS:
            yield rows
            rows, wide = [], int(batch.counts[start:end].max())
        rows.extend(range(start, end))
        widest = wide
    yield rows


def _groups(batch: StepBatch) -> Iterator[tuple[int, int]]:
    """Yield where the rows of each group begin and end."""
    ends = (batch.group.diff() != 0).nonzero().flatten() + 1
    bounds = [0, *ends.tolist(), batch.num_rows]
    yield from pairwise(bounds)
