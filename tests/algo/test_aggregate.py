"""A batch cut into micro-batches, or over ranks, has the gradient of the whole batch."""

from __future__ import annotations

import pytest
import torch

from asyncrl.algo.aggregate import aggregate
from asyncrl.algo.inputs import Totals
from asyncrl.algo.metrics import values
from asyncrl.algo.registry import parts, resolve
from tests.algo.one_loss import ROWS, even_slices, fixture, gradient
from tests.conformance.tensors import count_totals

OBJECTIVES = (
    "grpo", "dapo", "gspo", "luspo", "atpo", "cispo", "decoupled_ppo", "ppo_ewma", "icepop", "kpop", "asympo", "vapo",
    "clip_cov", "kl_cov", "sat_kl_entropy",
)  # fmt: skip


@pytest.mark.parametrize("mode", parts()["aggregation"])
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_two_ranks_give_the_gradient_and_metrics_of_one(two_ranks, tmp_path, name):
    two_ranks.call("tests.algo.one_loss", str(tmp_path / "result.pt"), name)
    found = torch.load(tmp_path / "result.pt")
    alone, metrics = gradient(name, even_slices(4))
    torch.testing.assert_close(found["grad"], alone, rtol=0, atol=1e-6)
    assert found["metrics"] == pytest.approx(values(metrics), rel=1e-9)
