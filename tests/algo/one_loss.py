"""One loss over a fixed batch, cut into micro-batches or shared by two ranks (`tests.ranks`)."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.metrics import merge, reduce_over_ranks, values
from asyncrl.algo.objective import build_objective
from tests.algo.factories import loss_fields
from tests.conformance.tensors import count_totals

ROWS = 8


@functools.cache
def fixture() -> dict:
    fields = loss_fields(7, rows=ROWS)
    fields["mask"][5] = False
    return fields


def cut(fields: dict, rows: slice) -> dict:
    return {k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in fields.items()}


def objective(name: str):
    if name == "sat_kl_entropy":
        return build_objective({"loss": "ppo_clip", "kl": {"coef": 0.1}, "entropy_coef": 0.01})
    return build_objective({"preset": name})


def gradient(name: str, slices: list[slice], dtype=torch.float64):
    """`(gradient [ROWS,T], metrics)` of a preset's loss, accumulated over micro-batches."""
    fields, chosen = fixture(), objective(name)
    totals = count_totals(fields["mask"], fields["group"], chosen.horizon)
    logp = fields["logp"].to(dtype, copy=True).requires_grad_()
    statistics = chosen.step_statistics(LossInputs.of(fields))
    parts = []
    for rows in slices:
        inputs = LossInputs.of({**cut(fields, rows), "logp": logp[rows], "statistics": statistics})
        loss, metrics = chosen.loss(inputs, totals)
        loss.backward()
        parts.append(metrics)
    return logp.grad, merge(parts)


def even_slices(count: int) -> list[slice]:
    size = ROWS // count
    return [slice(i * size, (i + 1) * size) for i in range(count)]


def main(out: str, name: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    operations = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
    grad, metrics = gradient(name, even_slices(4)[rank * 4 // world : (rank + 1) * 4 // world])
    dist.all_reduce(grad)
    merged = reduce_over_ranks(metrics, lambda tensor, op: dist.all_reduce(tensor, operations[op]))
    if rank == 0:
        torch.save({"grad": grad, "metrics": values(merged)}, out)
