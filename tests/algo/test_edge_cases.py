"""Batches and values at the edge of what functions are made for."""

from __future__ import annotations

import math

import pytest
import torch

from asyncrl.algo.diagnostics.mismatch import divergence
from asyncrl.algo.loss.sat import order_quantile
from asyncrl.algo.metrics import extreme_over, merge, values
from asyncrl.algo.ops import quantile
from asyncrl.algo.registry import ADVANTAGES
from asyncrl.errors import ConfigError
from tests.algo.factories import advantage_batch
from tests.algo.test_advantage_properties import estimate


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "gdpo"])
def test_a_batch_without_any_turn_has_no_advantage(name):
    rows, width = 4, 6
    nothing = torch.full((rows, width), -1)
    batch = advantage_batch(
        0, groups=2, size=2, width=width,
        mask=nothing >= 0,
        turn_ids=nothing,
        turn_rewards=[[]] * rows,
        observation_ids=[[]] * rows,
        turn_matches=[[]] * rows,
    )  # fmt: skip
    advantages = estimate(name, batch)
    assert advantages.shape == (rows, width)
    assert (advantages == 0).all()


def test_an_extreme_over_no_rows_never_wins():
    empty = extreme_over(torch.zeros(0, 3))
    assert values({"largest": empty}) == {}
    joined = merge([{"largest": empty}, {"largest": extreme_over(torch.tensor([-5.0]))}])
    assert values(joined) == {"largest": -5.0}


@pytest.mark.parametrize(
    ("level", "count", "rank"), [(0.55, 100, 55), (0.9, 10, 9), (0.07, 100, 7), (0.9, 11, 10)]
)
def test_the_rank_of_an_order_quantile_is_exact(level, count, rank):
    assert order_quantile(torch.arange(1, count + 1), level).item() == rank


@pytest.mark.slow
def test_a_quantile_takes_more_values_than_torch_does():
    many = torch.zeros(2**24 + 2)
    many[: len(many) // 5] = 1.0
    assert quantile(many, 0.9).item() == 1.0
    assert quantile(many, 0.5).item() == 0.0
    few = torch.tensor([4.0, 1, 7, 2, 2])
    for level in (0.0, 0.3, 0.5, 0.9, 1.0):
        torch.testing.assert_close(quantile(few, level), torch.quantile(few, level))


def test_chi_square_clamps_the_ratio_and_not_its_square():
    mask = torch.ones(1, 1, dtype=torch.bool)
    found = divergence(torch.tensor([[15.0]]), torch.tensor([[0.0]]), mask)
    for name in ("mismatch/chi2_token", "mismatch/chi2_sequence"):
        assert values(found)[name] == pytest.approx(math.exp(30.0) - 1, rel=1e-5)


def test_gpg_gives_a_lone_row_zero_or_its_reward_as_configured():
    rewards = torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64)
    batch = advantage_batch(0, groups=3, size=1, rewards=rewards)
    assert (estimate("gpg", batch) == 0).all()
    # Three rows, two of them with a reward: alpha is 3/2.
    torch.testing.assert_close(estimate("gpg", batch, singleton="raw")[:, 0], 1.5 * rewards)


def test_the_column_form_of_the_token_baseline_refuses_episodes_of_several_turns():
    with pytest.raises(ConfigError, match="use tir_optimal_token_baseline"):
        estimate("optimal_token_baseline", advantage_batch(0))


def test_the_multi_turn_token_baseline_compares_sampled_tokens_of_the_same_number():
    """By column the two rollouts would share the middle one alone; by number they share both their first tokens."""
    mask = torch.tensor([[1, 0, 1, 0], [0, 1, 1, 1]]).bool()
    energy = torch.tensor([[1.0, 0, 3, 0], [0, 2.0, 1, 5]], dtype=torch.float64)
    batch = advantage_batch(
        0, groups=1, size=2, width=4,
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        turn_rewards=[[1.0], [4.0]],
        rewards=torch.tensor([1.0, 4.0], dtype=torch.float64),
        # With pi 1/2 the energy of a step is the sum of squared probabilities.
        old_logp=torch.full((2, 4), math.log(0.5), dtype=torch.float64),
        sum_pi_squared=energy,
    )  # fmt: skip
    # Accumulated energies by number: [1, 4] and [2, 3, 8]; returns 1 and 4 everywhere.
    first, second = (1 * 1 + 4 * 2) / 3, (1 * 4 + 4 * 3) / 7
    expected = [[1 - first, 0, 1 - second, 0], [0, 4 - first, 4 - second, 4.0]]
    found = estimate("tir_optimal_token_baseline", batch)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_both_token_baselines_agree_on_episodes_of_one_turn():
    mask = torch.zeros(12, 8, dtype=torch.bool)
    for row in range(12):
        mask[row, : 2 + row % 5] = True
    batch = advantage_batch(3, mask=mask, turn_ids=torch.where(mask, 0, -1), turn_rewards=[[0.5]] * 12)
    for params in ({}, {"use_is_weights": True}, {"handle_zero_tail": False}):
        by_column = estimate("optimal_token_baseline", batch, **params)
        torch.testing.assert_close(estimate("tir_optimal_token_baseline", batch, **params), by_column)
