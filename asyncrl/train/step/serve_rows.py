"""Which rank holds which rows of a batch.

The first rank takes a batch from the buffer and keeps it. The others know its outline (how long each row is, and of
which group) and are sent the rows of their own micro-batches:

    first rank: batch --outline--> all ranks --rows of its plan--> each rank: forward, backward
    each rank: numbers of its sampled tokens --> first rank: advantages --those of its rows--> each rank

So no other rank receives or holds more than its share. What needs the whole batch, such as advantages, is computed on
the first rank, from numbers of sampled tokens alone and without padding (`asyncrl.train.step.ragged`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import torch
from torch import Tensor

from asyncrl.data.codec import decode_trajectory, encode_trajectory
from asyncrl.data.micro_batches import Packing, plan_micro_batches
from asyncrl.data.token_extras.table import read_by_models
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import Outline, StepBatch
from asyncrl.types import Trajectory

Plan = Sequence[Sequence[Sequence[int]]]
"""Rows by part of the batch and micro-batch, as `plan_micro_batches` gives them.

A part is one rank's, or that of the ranks which compute rows together (`TrainEngine.share`)."""


def share_batch(engine: TrainEngine, batch: StepBatch | None) -> StepBatch:
    """Return the batch: on the first rank the one given, on the others its outline. A collective."""
    if engine.num_ranks == 1:
        assert batch is not None
        return batch
    plain = None
    if engine.rank == 0:
        assert batch is not None
        plain = {
            "lengths": batch.lengths, "counts": batch.counts.tolist(), "group": batch.group.tolist(),
            "group_ids": batch.group_ids, "step": batch.step,
            "packing": asdict(batch.packing) if engine.shares_prefixes else None,
        }  # fmt: skip
    plan = engine.broadcast(plain)
    if batch is not None and engine.rank == 0:
        return batch
    packing = None if plan["packing"] is None else Packing(**plan["packing"])
    outline = Outline(plan["lengths"], np.array(plan["counts"], np.int64), plan["group_ids"], packing)
    return StepBatch((), torch.tensor(plan["group"], dtype=torch.long), plan["step"], outline=outline)


def plan_rows(
    engine: TrainEngine,
    batch: StepBatch,
    micro_batch_tokens: int,
    rows: Sequence[int] | None = None,
    units: Sequence[int] | None = None,
) -> list[list[list[int]]]:
    """Return the micro-batches of rows, by default of all; see `plan_micro_batches`. units: [B] of all rows."""
    chosen = list(range(batch.num_rows)) if rows is None else list(rows)
    dealt = plan_micro_batches(
        [batch.lengths[row] for row in chosen],
        micro_batch_tokens,
        engine.num_shares,
        None if units is None else [units[row] for row in chosen],
        batch.packing.of(chosen) if engine.shares_prefixes else None,
    )
    return [[[chosen[place] for place in part] for part in parts] for parts in dealt]


def end_of_step(engine: TrainEngine) -> list[list[list[int]]]:
    """Return an empty micro-batch for each part: at the end of a step, so that DeepSpeed reduces over the ranks."""
    return [[[]]] * engine.num_shares


def serve_rows(engine: TrainEngine, batch: StepBatch, plan: Plan) -> None:
    """Give each rank the rows of its micro-batches, and let it forget others. A collective.

    Rows that a rank has from the plan before are not sent again.
    """
    for rank in range(1, engine.num_ranks):
        wanted = rows_of(plan[engine.share_of(rank)])
        if engine.rank == 0:
            known = batch.sent.get(rank, frozenset())
            new = [row for row in wanted if row not in known]
            bodies = [encode_trajectory(_stripped(batch, row)) for row in new]
            batch.sent[rank] = frozenset(wanted)
            engine.send((bodies, [batch.trajectories[row].peer for row in new]), rank)
        elif engine.rank == rank:
            new = [row for row in wanted if row not in batch.held]
            bodies, peers = engine.receive(0)
            rows = (replace(decode_trajectory(b), peer=p) for b, p in zip(bodies, peers, strict=True))
            received = dict(zip(new, rows, strict=True))
            kept = {row: batch.held[row] for row in wanted if row in batch.held}
            batch.held.clear()
            batch.held.update(kept | received)


def serve_values(
    engine: TrainEngine, batch: StepBatch, plan: Plan, values: Mapping[str, Ragged]
) -> dict[str, dict[int, Tensor]]:
    """Return what each of `values`, which the first rank has, says of the rows of this rank's plan. A collective."""
    names = engine.broadcast(sorted(values) if engine.rank == 0 else None)
    mine = rows_of(plan[engine.share])
    if engine.rank == 0:
        for rank in range(1, engine.num_ranks):
            for name in names:
                engine.send_values(values[name].flat(rows_of(plan[engine.share_of(rank)])), rank)
        return {name: {row: values[name].row(row) for row in mine} for name in names}
    sizes = [int(batch.counts[row]) for row in mine]
    received = {name: engine.receive_values(sum(sizes), 0) for name in names}
    return {name: dict(zip(mine, flat.split(sizes), strict=True)) for name, flat in received.items()}


def gather_values(
    engine: TrainEngine,
    counts: np.ndarray,
    plan: Plan,
    values: Mapping[str, Sequence[Tensor]],
    missing: float = 0.0,
) -> dict[str, Ragged]:
    """Return on the first rank what all ranks computed of the rows of their plans, by name. A collective.

    counts: [B] how many numbers each row has; values: those of this rank, row after row of its plan. Rows in no plan
    are `missing`. On the other ranks all rows are empty.
    """
    flat = {
        name: torch.cat([torch.zeros(0), *(part.cpu() for part in parts)]) for name, parts in values.items()
    }
    if engine.rank != 0:
        # The first of the ranks that compute the same rows speaks for them.
        for part in flat.values() if engine.rank % engine.ranks_of_share == 0 else ():
            engine.send_values(part, 0)
        return {name: Ragged.full(np.zeros_like(counts)) for name in values}
    found = {name: Ragged.full(counts, missing) for name in values}
    for name, part in flat.items():
        found[name].put(rows_of(plan[0]), part)
    for rank in range(engine.ranks_of_share, engine.num_ranks, engine.ranks_of_share):
        rows = rows_of(plan[engine.share_of(rank)])
        for name in values:
            found[name].put(rows, engine.receive_values(int(counts[rows].sum()), rank))
    return found


def rows_of(plan: Sequence[Sequence[int]]) -> list[int]:
    """Return the rows of one rank's micro-batches, in order."""
    return [row for part in plan for row in part]


def _stripped(batch: StepBatch, row: int) -> Trajectory:
    """Return a row without what no model reads: what people read is larger than its tokens."""
    whole = batch.trajectories[row]
    extras = read_by_models(whole.extras)
    return replace(whole, conversation="", info={}, timing={}, error="", engines=(), extras=extras)
