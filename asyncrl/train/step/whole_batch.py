"""Passes over the whole batch of a step, before its first optimizer step: each rank computes its share of the rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.serve_rows import gather_values, plan_rows, serve_rows
from asyncrl.train.step.step_batch import Rows, StepBatch, pad_rows
from asyncrl.train.step.step_settings import StepSettings

Forward = Callable[[Rows], dict[str, Tensor]]


@torch.no_grad()
def whole_batch(
    engine: TrainEngine,
    batch: StepBatch,
    settings: StepSettings,
    forward: Forward,
    names: tuple[str, ...],
    rows: list[int] | None = None,
) -> dict[str, Ragged]:
    """Return on the first rank `forward`'s outputs for the sampled tokens of all rows, or of those given; 0 for others.

    Each rank computes its share. What ends in `end_values` is one number a row, `states` the width of the
    model for each token, one after the other.
    """
    plan = plan_rows(engine, batch, settings.micro_batch_tokens, rows)
    serve_rows(engine, batch, plan)
    computed: dict[str, list[Tensor]] = {name: [] for name in names}
    for part in plan[engine.share]:
        padded = pad_rows(batch, part)
        engine.progress.mark()
        outputs = forward(padded)
        for name in names if part else ():
            value = outputs[name].float()
            if name == "states":
                value = value.flatten()
            computed[name].append(value if value.ndim == 1 else value[padded.mask.to(value.device)])
    ends = {name: parts for name, parts in computed.items() if name.endswith("end_values")}
    tokens = {name: parts for name, parts in computed.items() if name not in ends and name != "states"}
    found = gather_values(engine, batch.counts, plan, tokens)
    if "states" in computed:
        counts = batch.counts * engine.hidden_size
        found |= gather_values(engine, counts, plan, {"states": computed["states"]})
    if ends:
        found |= gather_values(engine, np.ones_like(batch.counts), plan, ends)
    return found


def rows_by_version(batch: StepBatch) -> list[tuple[int, list[int]]]:
    """Return the versions that sampled tokens of a batch, in order, each with the rows it is in."""
    found: dict[int, list[int]] = {}
    for row, t in enumerate(batch.trajectories):
        for version in np.unique(t.versions[t.loss_mask]).tolist():
            found.setdefault(version, []).append(row)
    return sorted(found.items())
