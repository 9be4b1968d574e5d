"""A batch cut into micro-batches, or over ranks, has the gradient of the whole batch."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from asyncrl.algo.aggregate import aggregate
from asyncrl.algo.inputs import LossInputs, Totals, count_totals
from asyncrl.algo.metrics import merge, reduce_over_ranks, values
from asyncrl.algo.objective import build_objective
from asyncrl.algo.registry import AGGREGATIONS, resolve
from tests.algo.factories import loss_fields

ROWS = 8
OBJECTIVES = ("grpo", "dapo", "gspo", "cispo", "decoupled_ppo", "ppo_ewma", "icepop", "sat_kl_entropy")


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
    logp = fields["logp"].to(dtype).requires_grad_()
    parts = []
    for rows in slices:
        inputs = LossInputs(**{**cut(fields, rows), "logp": logp[rows]})
        loss, metrics = chosen.loss(inputs, totals)
        loss.backward()
        parts.append(metrics)
    return logp.grad, merge(parts)


def even_slices(count: int) -> list[slice]:
    size = ROWS // count
    return [slice(i * size, (i + 1) * size) for i in range(count)]


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("slices", [even_slices(2), even_slices(4), [slice(0, 1), slice(1, 6), slice(6, 8)]])
def test_micro_batches_sum_to_the_whole_batch(mode, slices):
    fields = fixture()
    totals = count_totals(fields["mask"], fields["group"], horizon=10.0)
    losses = []
    for chosen in ([slice(0, ROWS)], slices):
        token_loss = fields["logp"].clone().requires_grad_()
        for rows in chosen:
            part = aggregate(
                resolve("aggregation", mode),
                token_loss[rows],
                fields["mask"][rows],
                totals,
                fields["group"][rows],
            )
            part.backward()
        losses.append(token_loss.grad)
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("count", [2, 4])
def test_every_objective_is_the_same_under_gradient_accumulation(name, count):
    whole, whole_metrics = gradient(name, even_slices(1), torch.float32)
    parts, parts_metrics = gradient(name, even_slices(count), torch.float32)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)
    assert values(parts_metrics) == pytest.approx(values(whole_metrics), rel=1e-4, abs=1e-6)


def test_a_fully_masked_row_counts_as_no_sequence():
    mask = torch.tensor([[True, True], [False, False]])
    loss = torch.tensor([[1.0, 3.0], [9.0, 9.0]])
    mode = resolve("aggregation", "seq_mean_token_mean")
    assert aggregate(mode, loss, mask, count_totals(mask)).item() == 2.0
    assert aggregate(resolve("aggregation", "trl_grpo"), loss, mask, count_totals(mask)).item() == 1.0


def test_prompt_mean_weighs_prompts_equally():
    mask = torch.tensor([[True, True], [True, False], [True, True]])
    loss = torch.tensor([[3.0, 3.0], [0.0, 0.0], [5.0, 7.0]])
    group = torch.tensor([0, 0, 1])
    mode = resolve("aggregation", "prompt_mean")
    assert aggregate(mode, loss, mask, count_totals(mask, group), group).item() == (2.0 + 6.0) / 2


def test_a_missing_count_is_named():
    with pytest.raises(ValueError, match=r"Totals\.horizon"):
        resolve("aggregation", "seq_mean_token_sum_norm")(torch.ones(2), Totals(4, 2))


def _rank(rank: int, world: int, folder: str, name: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=world)
    operations = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
    grad, metrics = gradient(name, even_slices(4)[rank * 4 // world : (rank + 1) * 4 // world])
    dist.all_reduce(grad)
    merged = reduce_over_ranks(metrics, lambda tensor, op: dist.all_reduce(tensor, operations[op]))
    if rank == 0:
        torch.save({"grad": grad, "metrics": values(merged)}, Path(folder) / "result.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_two_ranks_give_the_gradient_and_metrics_of_one(name):
    results = []
    for world in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(_rank, args=(world, folder, name), nprocs=world)
            results.append(torch.load(Path(folder) / "result.pt"))
    torch.testing.assert_close(results[1]["grad"], results[0]["grad"], rtol=0, atol=1e-6)
    assert results[1]["metrics"] == pytest.approx(results[0]["metrics"], rel=1e-9)
