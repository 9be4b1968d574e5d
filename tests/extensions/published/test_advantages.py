"""Estimators of published methods, on numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from asyncrl.algo.registry import resolve
from asyncrl.errors import ConfigError
from tests.algo.factories import advantage_batch
from tests.algo.test_advantage_properties import estimate


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


def test_mc_grpo_drops_one_pivot_per_group():
    outputs = resolve("advantage", "mc_grpo")(advantage_batch(0, groups=3, size=5))
    assert outputs.keep.view(3, 5).sum(1).tolist() == [4, 4, 4]


def test_mc_grpo_stays_moderate_when_the_median_deviation_is_zero():
    rewards = torch.tensor([1.0, 0, 0, 0, 1], dtype=torch.float64)
    batch = advantage_batch(0, groups=1, size=5, rewards=rewards)
    assert estimate("mc_grpo", batch).abs().max() < 3
    assert estimate("mc_grpo", batch, mad_zero="paper").abs().max() == pytest.approx(1000)


def test_hinted_rollouts_do_not_raise_the_baseline_of_the_others():
    rewards = torch.tensor([1.0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0], dtype=torch.float64)
    hints = [0, 0, 1, 1, 0, 0, 3, 3, 0, 0, 0, 0]
    batch = advantage_batch(0, rewards=rewards, hint_turns=hints)
    half = 2**-0.5
    unhinted_fail, no_hints = [0, 0, 1.5, -0.5], [1.5, -0.5, -0.5, -0.5]
    wanted = torch.tensor([half, -half, 0.5, 0.5, *unhinted_fail, *no_hints], dtype=torch.float64)
    torch.testing.assert_close(estimate("hinted_grpo", batch)[:, 0], wanted, rtol=1e-5, atol=1e-5)
    without = dataclasses.replace(batch, hint_turns=None)
    assert torch.equal(estimate("hinted_grpo", without), estimate("grpo", without))


def test_gdpo_ignores_an_absent_component():
    answer = torch.tensor([1.0, 0, 1, 0], dtype=torch.float64)
    absent = torch.full((4,), torch.nan, dtype=torch.float64)
    with_absent = advantage_batch(0, groups=1, components={"answer": answer, "style": absent})
    without = advantage_batch(0, groups=1, components={"answer": answer})
    assert torch.equal(estimate("gdpo", with_absent), estimate("gdpo", without))


def test_gae_bootstraps_truncated_episodes_only():
    batch = advantage_batch(1)
    other = dataclasses.replace(batch, bootstrap_values=batch.bootstrap_values + 1)
    changed = (estimate("gae", batch) != estimate("gae", other)).any(-1)
    assert torch.equal(changed, batch.truncated)
