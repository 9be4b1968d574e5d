"""Parts of published methods in an objective: what they weigh, keep and add."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.settings import measured_needs
from asyncrl.extensions.published.filters import max_variance
from tests.algo.factories import advantage_batch, loss_inputs
from tests.algo.test_objective import build, loss_of


def test_vcpo_reads_gradient_norms_and_weighs_every_sequence_the_same():
    """As its authors run it: their scripts aggregate by sequence, and the baseline has the norms of gradients."""
    objective = build(preset="vcpo")
    rewards, norms = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0])
    batch = advantage_batch(0, groups=1, size=2, rewards=rewards.double(), score_norms=norms.double())
    batch = dataclasses.replace(batch, old_logp=batch.behavior_logp)
    # b* = 9 / 10, and half a standard deviation of 0.5.
    advantages = objective.estimate(batch).advantages
    torch.testing.assert_close(advantages[:, 0], torch.tensor([0.2, -1.8], dtype=torch.float64))
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    logp = torch.full((2, 4), -1.0, dtype=torch.float64, requires_grad=True)
    inputs = LossInputs(
        logp=logp, mask=mask, advantages=torch.ones(2, 4), behavior_logp=logp.detach(), proximal_logp=logp.detach()
    )  # fmt: skip
    gradient = torch.autograd.grad(loss_of(objective, inputs)[0], logp)[0]
    torch.testing.assert_close(gradient.sum(-1), torch.tensor([-0.5, -0.5], dtype=torch.float64))


def test_top_entropy_keeps_the_share_of_the_step_that_is_least_certain():
    entropy = torch.tensor([[0.1, 0.9, 0.5, 9.0], [0.3, 0.8, 0.2, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]] * 2)
    inputs = loss_inputs(1, rows=2, width=4, entropy=entropy, mask=mask)
    objective = build(corrections=[{"name": "top_entropy", "share": 0.4}])
    assert "entropy" in measured_needs(objective.settings)
    # The 0.6 quantile of 0.1, 0.2, 0.3, 0.5, 0.8 and 0.9 is 0.5.
    statistics = objective.step_statistics(inputs)
    assert statistics["top_entropy_least"].item() == pytest.approx(0.5)
    weight, _ = objective.correction_weight(dataclasses.replace(inputs, statistics=statistics))
    assert weight.tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]
    # A micro-batch alone would keep another set.
    alone, _ = objective.correction_weight(
        loss_inputs(1, rows=1, width=4, entropy=entropy[1:], mask=mask[1:])
    )
    assert alone.tolist() == [[0, 1, 0, 0]]


def test_top_entropy_advantage_keeps_the_tokens_that_matter_most_and_are_least_certain():
    entropy = torch.tensor([[0.1, 0.9, 0.5, 9.0], [0.3, 0.8, 0.2, 9.0]], dtype=torch.float64)
    advantages = torch.tensor([[1.0, 0.0, -1.0, 9.0], [-2.0, 0.5, 0.5, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]] * 2)
    inputs = loss_inputs(1, rows=2, width=4, entropy=entropy, advantages=advantages, mask=mask)
    objective = build(corrections=[{"name": "top_entropy_advantage", "share": 0.4}])
    assert "entropy" in measured_needs(objective.settings)
    # Of 0.1, 0, 0.5, 0.6, 0.4 and 0.1 the 0.6 quantile is 0.4.
    statistics = objective.step_statistics(inputs)
    assert statistics["top_entropy_advantage_least"].item() == pytest.approx(0.4)
    weight, _ = objective.correction_weight(dataclasses.replace(inputs, statistics=statistics))
    assert weight.tolist() == [[0, 0, 1, 0], [1, 1, 0, 0]]


def test_top_entropy_turns_keeps_the_turns_of_the_step_that_are_least_certain():
    entropy = torch.tensor([[0.1, 0.3, 0.9, 0.7], [0.6, 9.0, 0.1, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, True], [True, False, True, True]])
    turn_ids = torch.tensor([[0, 0, 1, 1], [0, -1, 1, 2]])
    inputs = loss_inputs(1, rows=2, width=4, entropy=entropy, mask=mask, turn_ids=turn_ids)
    objective = build(corrections=[{"name": "top_entropy_turns", "share": 0.5}])
    assert "entropy" in measured_needs(objective.settings)
    # Of turns with mean entropy 0.2, 0.8, 0.6, 0.1 and 0.0 three are kept; 0.15 lies between them and the others.
    statistics = objective.step_statistics(inputs)
    assert statistics["top_entropy_turns_least"].item() == pytest.approx(0.15)
    weight, _ = objective.correction_weight(dataclasses.replace(inputs, statistics=statistics))
    assert weight.tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    # A micro-batch alone would keep another set.
    alone = loss_inputs(1, rows=1, width=4, entropy=entropy[1:], mask=mask[1:], turn_ids=turn_ids[1:])
    assert objective.correction_weight(alone)[0].tolist() == [[1, 0, 1, 0]]


def test_top_entropy_turns_refuses_a_share_of_nothing_and_takes_a_batch_of_nothing():
    with pytest.raises(ValueError, match="fraction must be in"):
        build(corrections=[{"name": "top_entropy_turns", "share": 0.0}]).step_statistics(loss_inputs(1))
    nothing = loss_inputs(1, mask=torch.zeros(4, 6, dtype=torch.bool))
    objective = build(corrections=["top_entropy_turns"])
    weight, _ = objective.correction_weight(
        dataclasses.replace(nothing, statistics=objective.step_statistics(nothing))
    )
    assert not weight.any()


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # 4 w / Σ w with w = R²; the second group has no reward, so all of it stays.
        ("pow", [4 / 1.5, 0, 1 / 1.5, 1 / 1.5, 1, 1]),
        ("max_min", [2, 2, 0, 0, 1, 1]),
        ("max_random", [1.6 / 0.7, 0.4 / 0.7, 0.4 / 0.7, 0.4 / 0.7, 1, 1]),
    ],
)
def test_pf_ppo_weighs_rows_by_how_often_they_would_be_drawn(method, expected):
    rewards = torch.tensor([1.0, 0, 0.5, 0.5, 0, 0], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 0, 1, 1])
    fields = {"rewards": rewards, "group": group, "baselines": torch.full((6,), -1.0)}
    batch = advantage_batch(0, groups=3, size=2, **fields)
    objective = build(advantage="spo", filters=[{"name": "pf_ppo", "method": method}])
    weights = torch.tensor(expected, dtype=torch.float64)
    outputs = objective.estimate(batch)
    torch.testing.assert_close(outputs.advantages[:, 0], weights * (rewards + 1))
    assert torch.equal(outputs.keep, weights > 0)


def test_the_rows_whose_advantages_vary_the_most_are_kept_over_all_groups():
    batch = dataclasses.replace(
        advantage_batch(2, groups=4, size=2),
        rewards=torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
        group=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]),
    )
    # Advantages are 0 in the groups 0 and 2, and 1 and -1 in the others.
    assert max_variance(batch, keep=0.5).tolist() == [False, False, True, True, False, False, True, True]
    assert max_variance(batch, keep=0.3).sum() == 3
    assert max_variance(batch, keep=1.0).all()
    with pytest.raises(ValueError, match="share: must be above 0 and at most 1, got 0"):
        max_variance(batch, keep=0.0)


def test_the_share_of_rows_and_tokens_grows_over_versions():
    """D3S's schedule from a quarter: 0.25 at version 0, 0.55 at 4 of 10, all from 10 on."""
    batch = advantage_batch(2, groups=4, size=2)
    kept = [
        int(max_variance(dataclasses.replace(batch, current_version=version), keep=0.25, full_at=10).sum())
        for version in (0, 4, 10, 30)
    ]
    assert kept == [2, 5, 8, 8]
    entropy = torch.arange(1.0, 11.0, dtype=torch.float64).reshape(1, 10)
    inputs = loss_inputs(
        1,
        rows=1,
        width=10,
        entropy=entropy,
        advantages=torch.ones_like(entropy),
        mask=torch.ones_like(entropy),
    )
    objective = build(corrections=[{"name": "top_entropy_advantage", "share": 0.25, "full_at": 10}])
    least = [
        objective.step_statistics(dataclasses.replace(inputs, current_version=version)).popitem()[1].item()
        for version in (0, 4, 10, 30)
    ]
    # Scores are 1 to 10; the quantile q of them is 1 + 9 q.
    assert least == pytest.approx([1 + 9 * 0.75, 1 + 9 * 0.45, 1, 1])


def test_shaping_is_added_to_the_reward():
    batch = advantage_batch(2)
    shaped = build(
        advantage="reinforce", shaping=[{"name": "overlong_soft", "max_len": 6, "buffer": 2, "factor": 3.0}]
    )
    expected = (batch.rewards - 3.0).unsqueeze(-1) * batch.mask
    torch.testing.assert_close(shaped.estimate(batch).advantages, expected)
