"""Optimizer steps agent by agent (`algo.sequential_agents`); see `asyncrl.algo.sequential_agents` for the method."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import torch

from asyncrl.algo.sequential_agents import rollout_ratios, update_order, weights
from asyncrl.train.auxiliary_models import whole_batch
from asyncrl.train.ragged import Ragged
from asyncrl.train.step_batch import StepBatch

if TYPE_CHECKING:
    from asyncrl.train.step import Step


def update_by_agent(
    step: Step, rows: Sequence[int], update: Callable[[list[int]], None], lost: Collection[int]
) -> None:
    """Call `update` with the rows of one agent after the other, and weigh the advantages of those to come.

    lost: groups that are left out; `update` may add to them. A collective.
    """
    engine, batch = step.engine, step.batch
    parts: list[list[int]] = engine.on_first(lambda: _rows_by_agent(batch, rows))
    for number, part in enumerate(parts):
        mine = [row for row in part if int(batch.group[row]) not in lost]
        if not mine:
            continue
        update(mine)
        later = [row for further in parts[number + 1 :] for row in further]
        mine = [row for row in mine if int(batch.group[row]) not in lost]
        if later and mine:
            logp = whole_batch(
                engine, batch, step.settings,
                lambda one: engine.outputs(
                    one.token_ids, one.mask, step.settings.temperature, images=one.images
                ),
                ("logp",), mine,
            )["logp"]  # fmt: skip
            if engine.rank == 0:
                _weigh(step, mine, later, logp)


def _rows_by_agent(batch: StepBatch, rows: Sequence[int]) -> list[list[int]]:
    names = [str(batch.row(row).info.get("agent", "")) for row in rows]
    return [[rows[place] for place in part] for part in update_order(names)]


def _weigh(step: Step, earlier: Sequence[int], later: Sequence[int], logp: Ragged) -> None:
    """Multiply the advantages of later agents' rows by what the earlier agent has changed in their rollouts."""
    before = step.tensors.policy_logp
    assert before is not None, "more than one optimizer step computes it"
    changed = torch.stack([(logp.row(row) - before.row(row)).double().sum() for row in earlier])
    ratios = rollout_ratios(changed, [_rollout(step.batch, row) for row in earlier])
    factors = weights(ratios, [_rollout(step.batch, row) for row in later])
    for row, factor in zip(later, factors.tolist(), strict=True):
        step.tensors.tensors["advantages"].row(row).mul_(factor)


def _rollout(batch: StepBatch, row: int) -> tuple[int, int]:
    return int(batch.group[row]), batch.row(row).rollout
