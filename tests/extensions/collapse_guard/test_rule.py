"""The guard fires on a fall beyond chance and on drift, at hand-computed places, and nowhere else."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from asyncrl.extensions.collapse_guard.rule import (
    GuardState,
    StepSignals,
    Window,
    good_checkpoint,
    judge,
    state_of,
)


def step(version, rewards, drift=0.0, surprise=1.0):
    return StepSignals.of(version, version, rewards, drift, surprise)


def run(steps, checkpoints=(), state=None):
    state, verdicts = state or GuardState(), {}
    for signals in steps:
        state, verdict = judge(state, signals, checkpoints)
        if verdict.action:
            verdicts[signals.version] = verdict
    return state, verdicts


GOOD, BAD = [0.75, 1.0], [0.0, 0.25]


def test_a_window_pools_the_groups_of_its_steps():
    window = Window.of([step(0, [0.0, 1.0], 0.1, 2.0), step(1, [1.0, 1.0], 0.3, 4.0)], spread=0.0)
    # Mean 3/4; squares 1/2 within, 2 (1/4)^2 twice between: 3/4 over n - 1 = 3, over n = 4.
    assert (window.mean, window.drift, window.surprise) == (0.75, pytest.approx(0.2), 3.0)
    assert window.variance == pytest.approx(0.75 / 3 / 4)
    # A window whose groups happen to agree has the usual spread all the same.
    assert Window.of([step(0, [1.0] * 4)], spread=0.08).variance == pytest.approx(0.02)


def test_a_fall_goes_back_to_the_newest_good_checkpoint_at_half_the_rate():
    steps = [step(v, GOOD) for v in range(10)] + [step(v, BAD) for v in range(10, 14)]
    state, verdicts = run(steps, checkpoints=(4, 8, 12))
    # Spread of GOOD and of BAD 1/32; best 0.875 of 16 groups, s^2 = 1/32/16 (n - 1 in the pool makes it less).
    # Two bad steps of four: mean 0.5, pooled squares 4/32 + 8 (3/8)^2 over 7 over 8 = 0.0223; error 0.1557,
    # z 4.5: 0.70 > 0.375. Three: mean 0.3125, squares 1/8 + 8 * 3/16 (3/4)^2 = 0.96875, error 0.1388: 0.62 > 0.5625.
    # Four: mean 0.125, s^2 = 1/32/8, error 0.0765: 0.34 < 0.75.
    assert list(verdicts) == [13]
    assert (verdicts[13].action, verdicts[13].version) == ("go_back", 8)
    assert verdicts[13].why == ("fresh groups earn 0.125, at best it was 0.875 (standard error 0.077)")
    assert state.scale == 0.5
    assert state.given_up == ((8, 13),)
    assert state.good_version == 9


def test_a_policy_that_is_destroyed_at_once_is_given_up_for_the_one_at_the_start():
    babble = [step(v, [0.0, 0.0], surprise=6.0) for v in (3, 4, 5)]
    _, verdicts = run([step(0, GOOD), step(1, GOOD), step(2, BAD), *babble], checkpoints=(0,))
    # Best are steps 0 to 2: mean 0.625, squares 3/32 + 4 (1/4)^2 + 2 (1/2)^2 = 0.84375 over 5 over 6: 0.028125.
    # After step 4 the last four have 0.25, squares 1/16 + 2 (5/8)^2 + 2 (1/8)^2 + 4 (1/4)^2 over 7 over 8: 0.02009;
    # 3 standard errors are 0.66. After step 5 0.03125, and the usual spread 1/64 over 8: 0.5203 < 0.59375.
    assert [(v, verdict.action, verdict.version) for v, verdict in verdicts.items()] == [(5, "go_back", 0)]


def test_a_fall_is_believed_earlier_where_the_policy_has_moved():
    calm = [step(v, GOOD) for v in range(10)]
    for moved in ({"drift": 0.7}, {"surprise": 6.0}):
        # The mean of the last four steps is over its limit from the first or second bad step on; z 3: at the third
        # 0.42 < 0.5625. Drift alone would slow down after two steps.
        bad = [replace(step(v, BAD, **moved), drift=moved.get("drift", 0.0) * (v % 2)) for v in (11, 12, 13)]
        _, verdicts = run([*calm, step(10, GOOD), *bad], checkpoints=(8,))
        assert list(verdicts) == [13]
        assert "nats" in verdicts[13].why


def test_without_a_good_checkpoint_the_rate_falls_once_and_the_present_is_the_new_reference():
    steps = [step(v, GOOD) for v in range(10)] + [step(v, BAD) for v in range(10, 40)]
    state, verdicts = run(steps, checkpoints=(12,))
    assert [(v, verdict.action) for v, verdict in verdicts.items()] == [(13, "slow_down")]
    assert state.scale == 0.5
    assert state.best.mean == pytest.approx(0.125)


def test_drift_in_two_steps_in_a_row_slows_down_then_rests_for_the_groups_in_flight():
    drifts = [0.3, 0.1, 0.3, 0.2, 0.3, 0.3, 0.3, 0.3, 0.1]
    steps = [StepSignals.of(v, v - 2, GOOD, drift, 1.0) for v, drift in enumerate(drifts)]
    state, verdicts = run(steps)
    # Steps 4 and 5 trained groups that are two versions old: their drift is that of before step 3's action.
    assert [(v, verdict.action) for v, verdict in verdicts.items()] == [(3, "slow_down"), (6, "slow_down")]
    assert state.scale == 0.25


def test_a_fall_is_noticed_while_the_guard_rests_from_drift():
    calm = [StepSignals.of(v, v - 4, GOOD, 0.0, 1.0) for v in range(8)]
    moving = [StepSignals.of(v, v - 4, GOOD, 0.5, 1.0) for v in (8, 9)]
    bad = [StepSignals.of(v, v - 4, BAD, 0.5, 1.0) for v in (10, 11, 12)]
    _, verdicts = run([*calm, *moving, *bad], checkpoints=(4,))
    assert [(v, verdict.action) for v, verdict in verdicts.items()] == [(9, "slow_down"), (12, "go_back")]


def test_it_stops_acting_at_the_least_rate():
    _, verdicts = run([step(v, GOOD, 1.0) for v in range(20)])
    assert list(verdicts) == [1, 2, 3, 4]


def test_checkpoints_of_given_up_policies_are_not_good_ones_later():
    state = GuardState(good_version=40, given_up=((8, 13), (20, 26)))
    assert good_checkpoint(state, [8, 10, 13, 24]) == 8
    assert good_checkpoint(state, [8, 10, 14, 24, 50]) == 14
    assert good_checkpoint(state, [10, 50]) is None


def test_the_state_survives_a_checkpoint():
    steps = [step(v, GOOD) for v in range(10)] + [step(v, BAD, 0.4) for v in range(10, 30)]
    whole, verdicts = run(steps, checkpoints=(4,))
    assert verdicts
    for cut in (3, 9, 12, 14, 25):
        before, _ = run(steps[:cut], checkpoints=(4,))
        restored = state_of(json.loads(json.dumps(asdict(before))))
        assert restored == before
        assert run(steps[cut:], checkpoints=(4,), state=restored)[0] == whole


@pytest.mark.parametrize("groups", [2, 4, 16])
def test_noise_alone_hardly_ever_fires(groups):
    rng = np.random.default_rng(groups)
    fired = 0
    for _ in range(20):
        chances = rng.choice([0.1, 0.5, 0.9], size=(100, groups))
        steps = [step(v, (rng.binomial(8, row) / 8).tolist()) for v, row in enumerate(chances)]
        fired += bool(run(steps, checkpoints=range(100))[1])
    assert fired <= 1


def test_a_run_that_learns_is_left_alone():
    rng = np.random.default_rng(0)
    steps = []
    for version in range(60):
        success = min(0.95, 0.2 + version / 60)
        steps.append(step(version, (rng.binomial(8, success, size=4) / 8).tolist(), 0.05, 1.5 - version / 50))
    state, verdicts = run(steps)
    assert not verdicts
    assert state.best.mean > 0.9
