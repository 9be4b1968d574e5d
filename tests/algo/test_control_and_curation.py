"""Controllers that close the loop on asynchrony, the averaged policy, and data curation."""

from __future__ import annotations

import pytest
import torch

from asyncrl.algo.advantage.multi_agent import align_invocations
from asyncrl.algo.control.staleness_controller import StalenessRule, StalenessState, next_staleness
from asyncrl.algo.control.vcpo_lr import scaled_learning_rate
from asyncrl.algo.diagnostics.ess import derive, ess_metrics, sequence_ess
from asyncrl.algo.metrics import values
from asyncrl.extensions.published.proximal.ewma import beta_from_staleness, should_reset, update_ewma

RULE = StalenessRule(minimum=0, maximum=4, low=0.3, high=0.7, patience=3)


def run_rule(start: int, ess: list[float]) -> list[int]:
    state, seen = StalenessState(start), []
    for ratio in ess:
        state = next_staleness(state, ratio, RULE)
        seen.append(state.max_staleness)
    return seen


def test_low_ess_lowers_staleness_after_patience_and_again():
    assert run_rule(4, [0.1] * 6) == [4, 4, 3, 3, 3, 2]


def test_high_ess_raises_staleness_up_to_the_maximum():
    assert run_rule(3, [0.9] * 7) == [3, 3, 4, 4, 4, 4, 4]


def test_an_interrupted_run_of_low_ess_changes_nothing():
    assert run_rule(2, [0.1, 0.1, 0.5, 0.1, 0.1]) == [2] * 5


def test_staleness_never_falls_below_the_minimum():
    assert run_rule(0, [0.0] * 5) == [0] * 5


def test_impossible_rules_are_refused():
    with pytest.raises(ValueError, match="low < high"):
        StalenessRule(low=0.8, high=0.2)


def test_the_learning_rate_never_grows():
    assert scaled_learning_rate(1e-6, 0.9, base_ess_ratio=0.5) == 1e-6
    assert scaled_learning_rate(1e-6, 0.25) == pytest.approx(5e-7)


def test_equal_weights_have_the_full_sample_size():
    mask = torch.tensor([[True, True, False]])
    found = derive(values(ess_metrics(torch.full((1, 3), 0.4), mask)))
    assert found["ess/token"] == pytest.approx(1.0)
    assert sequence_ess(torch.full((5,), 0.4))[2].item() == pytest.approx(1.0)


def test_the_average_starts_at_the_policy_and_a_reset_returns_to_it():
    mean = [torch.zeros(2, dtype=torch.float64)]
    total = update_ewma(mean, [torch.tensor([1.0, 2.0], dtype=torch.float64)], 0.9, 0.0)
    assert mean[0].tolist() == [1.0, 2.0]
    total = update_ewma(mean, [torch.tensor([3.0, 2.0], dtype=torch.float64)], 0.9, total)
    assert mean[0].tolist() == pytest.approx([(0.9 * 1 + 3) / 1.9, 2.0])
    assert update_ewma(mean, [torch.tensor([5.0, 5.0], dtype=torch.float64)], 0.0, total) == 1.0
    assert mean[0].tolist() == [5.0, 5.0]


def test_mean_age_of_the_average_is_half_the_staleness():
    for staleness in (1, 4, 16):
        decay = beta_from_staleness(staleness)
        assert decay / (1 - decay) == pytest.approx(staleness / 2)


def test_a_lagging_average_is_reset():
    assert should_reset(0.85)
    assert not should_reset(0.95)


def test_invocations_are_aligned_to_a_fixed_number():
    generator = torch.Generator().manual_seed(0)
    many, few, none = align_invocations(torch.tensor([5, 2, 0]), 3, generator)
    assert len(set(many.tolist())) == 3
    assert sorted(set(few.tolist())) == [0, 1]
    assert len(few) == 3
    assert len(none) == 0
