"""Controllers move what they control by hand-computed amounts, and go on from a saved state."""

import dataclasses
import math

import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.config import parse_config
from asyncrl.extensions.published.advantage.spiral import spiral
from asyncrl.train.step.controls import KlController, make_controls, successes
from asyncrl.train.step.step_batch import build_step_batch, pad_rows, to_advantage_batch
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.train.step.trackers import BaselineTracker, RoleBaselines, mean_drift, prompt_key
from tests.train.factories import batch_of_groups, group, trajectory
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


def test_a_prompts_belief_moves_with_its_rewards_and_is_shared_by_its_epochs():
    tracker = BaselineTracker()
    first = build_step_batch([group("00000000-p", [1.0])], 0, 0)
    again = build_step_batch([group("00000007-p", [0.0])], 0, 0)
    assert tracker.baselines(first).tolist() == [0.5]
    tracker.update(first, torch.zeros(1))
    # No drift keeps 0.96 of (0.5, 0.5), then the reward is added: 1.48 of 1.96.
    assert tracker.baselines(again).tolist() == [pytest.approx(1.48 / 1.96)]


def test_a_policy_that_moved_far_forgets_faster():
    near, far = BaselineTracker(), BaselineTracker()
    batch = build_step_batch([group("p", [1.0])], 0, 0)
    near.update(batch, torch.tensor([0.0]))
    far.update(batch, torch.tensor([1.0]))
    assert far.beliefs["p"] == (pytest.approx(1.4375), pytest.approx(0.4375))
    assert near.beliefs["p"] == (pytest.approx(1.48), pytest.approx(0.48))


def test_a_reward_outside_the_unit_interval_is_refused_by_name():
    batch = build_step_batch([group("p", [1.5])], 0, 0)
    with pytest.raises(ValueError, match=r"task p: a tracked baseline needs rewards in \[0, 1\], got 1.5"):
        BaselineTracker().baselines(batch)


@pytest.mark.parametrize(
    ("task_id", "key"),
    [("00000012-maze-3", "maze-3"), ("maze-3", "maze-3"), ("7", "7"), ("2023-aime-3", "2023-aime-3")],
)
def test_a_prompts_key_leaves_out_its_place_in_the_plan(task_id, key):
    assert prompt_key(trajectory(task_id)) == key


def test_problems_of_a_task_file_are_told_apart_by_their_whole_ids():
    tracker = BaselineTracker(numbered=False)
    batch = build_step_batch([group("20230101-aime", [1.0]), group("20240101-aime", [0.0])], 0, 0)
    tracker.update(batch, torch.tensor([0.0, 0.0]))
    assert set(tracker.beliefs) == {"20230101-aime", "20240101-aime"}


def test_single_rollout_presets_learn_their_baselines_while_they_train(tiny_model):
    learner = Learner(tiny_model, {"preset": "spo"})
    learner.step()
    beliefs = learner.controls.trackers[0].beliefs
    assert set(beliefs) == {"t0", "t1", "t2"}
    assert sum(a + b for a, b in beliefs.values()) > 3


def test_each_role_has_a_running_mean_of_its_own_and_returns_are_scored_before_they_enter_it():
    tracker = RoleBaselines()
    episodes = [
        dataclasses.replace(trajectory("t", i, reward=reward), info={"agent": agent} if agent else {})
        for i, (agent, reward) in enumerate([("", 1.0), ("", 1.0), ("second", -1.0), ("second", 1.0)])
    ]
    batch = build_step_batch([dataclasses.replace(group("t", [0.0]), trajectories=tuple(episodes))], 0, 0)
    # 0, then 0.05 of the 1 before; the second player's are its own.
    assert tracker.baselines(batch).tolist() == pytest.approx([0.0, 0.05, 0.0, -0.05])
    tracker.learn(batch, StepTensors())
    env = batch.groups[0].task.env
    assert tracker.means == pytest.approx({f"{env}/": 0.0975, f"{env}/second": 0.0025})
    seen = to_advantage_batch(batch, {"role_baselines": tracker.baselines(batch)})
    advantages = spiral(seen)[:, 0].tolist()
    assert advantages == pytest.approx([1 - 0.0975, 1 - 0.142625, -1.0025, 1.047625])


def test_drift_is_the_mean_over_sampled_tokens_only():
    log_ratio = torch.tensor([[1.0, -3.0, 50.0], [0.5, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert mean_drift(log_ratio, mask).tolist() == [2.0, 0.5]


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
