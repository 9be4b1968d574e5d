"""Controllers move what they control by hand-computed amounts, and go on from a saved state."""

import dataclasses
import math

import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.train.step.controls import KlController, make_controls, successes
from asyncrl.train.step.step_batch import build_step_batch, pad_rows
from asyncrl.train.step.step_tensors import StepTensors
from tests.train.factories import batch_of_groups, trajectory
from tests.train.one_step import Learner


def controls(algo, **sections):
    config = parse_config({"model": {"path": "x"}, "env": {"name": "gridworld"}, "algo": algo, **sections})
    return make_controls(config, build_objective(algo))


def test_a_fixed_kl_coefficient_stays():
    kl = KlController(0.1)
    kl.update({"reference_kl": 5.0}, 100)
    assert kl.coef == 0.1


def test_an_adaptive_kl_coefficient_grows_above_the_target_and_shrinks_below():
    kl = KlController(0.1, target=0.02, horizon=1000)
    kl.update({"reference_kl": 0.03}, 100)
    # Error clipped to 0.2, times 100 sequences of 1000.
    assert kl.coef == pytest.approx(0.1 * 1.02)
    kl.update({"reference_kl": 0.019}, 100)
    assert kl.coef == pytest.approx(0.1 * 1.02 * (1 - 0.05 * 0.1))


STALENESS = {"enabled": True, "minimum": 1, "low_ess": 0.4, "high_ess": 0.8, "patience": 2}
STEERED = {"preset": "grpo", "staleness_control": STALENESS}
AT_MOST_4 = {"buffer": {"max_staleness": 4}}


def test_the_staleness_limit_falls_with_a_poor_sample_and_never_below_the_minimum():
    control = controls(STEERED, **AT_MOST_4).staleness
    changes = [control.update({"ess/token": 0.1}) for _ in range(8)]
    assert changes == [None, 3, None, 2, None, 1, None, None]


def test_the_staleness_limit_rises_again_with_a_good_sample_up_to_the_recipes():
    control = controls(STEERED, **AT_MOST_4).staleness
    for _ in range(4):
        control.update({"ess/token": 0.1})
    changes = [control.update({"ess/token": 0.95}) for _ in range(6)]
    assert changes == [None, 3, None, 4, None, None]


def test_a_middling_sample_starts_the_count_again():
    control = controls(STEERED, **AT_MOST_4).staleness
    assert [control.update({"ess/token": e}) for e in (0.1, 0.5, 0.1)] == [None, None, None]


def test_the_entropy_bonus_grows_below_its_target_and_rests_above():
    control = controls(
        {"preset": "grpo", "entropy_coef": 0.01, "entropy_control": {"target": 0.5, "step": 0.02}}
    ).entropy
    assert control.applied == 0.01
    seen = []
    for entropy in (0.4, 0.3, 0.6, 0.7, 0.9, 0.5):
        control.update({"entropy": entropy})
        seen.append((round(control.coef, 10), round(control.applied, 10)))
    assert seen == [(0.03, 0.03), (0.05, 0.05), (0.03, 0.0), (0.01, 0.0), (0.0, 0.0), (0.0, 0.0)]


def test_without_a_target_the_entropy_bonus_stays():
    control = controls({"preset": "grpo", "entropy_coef": 0.01}).entropy
    control.update({"entropy": 5.0})
    assert control.applied == 0.01


def test_the_learning_rate_follows_the_root_of_the_effective_sample():
    vcpo = controls({"preset": "vcpo"})
    mask = torch.ones(2, 1, dtype=torch.bool)
    # Sequence weights 3 and 1: ESS ratio (4^2 / 10) / 2 = 0.8.
    rate, ess = vcpo.learning_rate(1e-3, torch.tensor([[math.log(3.0)], [0.0]]), mask)
    assert ess == pytest.approx(0.8)
    assert rate == pytest.approx(1e-3 * math.sqrt(0.8))


def test_other_presets_leave_the_learning_rate_alone():
    grpo = controls({"preset": "grpo"})
    assert grpo.learning_rate(1e-3, torch.ones(2, 1), torch.ones(2, 1, dtype=torch.bool)) == (1e-3, None)


def test_the_scaled_rate_is_the_one_the_optimizer_takes(tiny_model):
    metrics = Learner(tiny_model, {"preset": "vcpo"}).step().metrics
    assert 0 < metrics["lr_scaling/factor"] < 1
    assert metrics["lr_scaling/factor"] == pytest.approx(math.sqrt(metrics["lr_scaling/ess"]))
    assert metrics["learning_rate"] == pytest.approx(1e-3 * metrics["lr_scaling/factor"])


def test_success_is_the_verdict_and_without_one_the_full_reward():
    t = trajectory("t", reward=1.0)
    judged = [dataclasses.replace(t, success=False), dataclasses.replace(t, success=True, reward=0.1)]
    silent = [t, dataclasses.replace(t, reward=0.9)]
    assert successes([*judged, *silent]) == [judged[1], silent[0]]


def test_all_controllers_resume_from_a_saved_state():
    algo = {"preset": "spo", "kl": {"coef": 0.1, "target": 0.02}, "staleness_control": STALENESS}
    before = controls(algo, **AT_MOST_4)
    before.kl.update({"reference_kl": 1.0}, 5000)
    before.staleness.update({"ess/token": 0.1})
    batch = build_step_batch(batch_of_groups(), 0, 0)
    before.trackers[0].update(batch, torch.zeros(pad_rows(batch, range(12)).mask.shape[0]))
    after = controls(algo, **AT_MOST_4)
    after.load_state_dict(before.state_dict())
    assert after.kl.coef == before.kl.coef != 0.1
    assert after.staleness.update({"ess/token": 0.1}) == 3
    assert after.trackers[0].beliefs == before.trackers[0].beliefs
    before, after = controls({"preset": "spiral"}), controls({"preset": "spiral"})
    before.trackers[0].learn(batch, StepTensors())
    after.load_state_dict(before.state_dict())
    assert after.trackers[0].means == before.trackers[0].means != {}
