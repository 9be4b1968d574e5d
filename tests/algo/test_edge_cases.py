"""Batches and values at the edge of what functions are made for."""

from __future__ import annotations

import math

import pytest
import torch

from asyncrl.algo.diagnostics.mismatch import divergence
from asyncrl.algo.metrics import extreme_over, merge, values
from asyncrl.algo.ops import quantile
from asyncrl.algo.registry import parts
from tests.algo.factories import advantage_batch
from tests.algo.test_advantage_properties import estimate


@pytest.mark.parametrize("name", [name for name in parts()["advantage"] if name != "gdpo"])
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
