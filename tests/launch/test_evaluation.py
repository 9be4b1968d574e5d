"""Evaluation results: whose failures count, what a rate is over, and what the summary shows."""

import dataclasses
import json

import pytest

from asyncrl.errors import InfrastructureError
from asyncrl.launch.evaluate import summarize
from asyncrl.launch.summary import eval_block
from asyncrl.launch.train import describe
from asyncrl.types import FailureClass, Status
from tests.train.factories import group


def judged(task_id, outcomes, reward_scale=1.0):
    """A group of episodes that succeed as `outcomes` say; a failure class instead is a failed episode."""
    whole = group(task_id, [0.0] * len(outcomes))
    episodes = []
    for t, outcome in zip(whole.trajectories, outcomes, strict=True):
        if isinstance(outcome, FailureClass):
            changed = {"status": Status.FAILED, "failure": outcome, "error": f"{outcome} broke"}
        else:
            changed = {"success": outcome, "reward": reward_scale * outcome}
        episodes.append(dataclasses.replace(t, **changed))
    return dataclasses.replace(whole, trajectories=tuple(episodes))


def test_rates_are_over_tasks_and_pass_at_k_over_doublings():
    result = summarize([judged("a", [True] * 4), judged("b", [True, False, False, False])], 4)
    assert (result.mean, result.success, result.tasks, result.samples) == (0.625, 0.625, 2, 4)
    assert result.pass_at == pytest.approx({"1": 0.625, "2": 0.75, "4": 1.0})
    assert result.failed == {}


def test_failures_of_environment_and_infrastructure_leave_the_rates_and_are_counted():
    lost, broken = FailureClass.INFRASTRUCTURE, FailureClass.ENVIRONMENT
    groups = [judged("a", [True, lost]), judged("b", [False, False]), judged("c", [lost, broken])]
    result = summarize(groups, 2)
    assert (result.mean, result.tasks) == (0.5, 2)
    assert result.failed == {"infrastructure": 2, "environment": 1}
    assert result.pass_at == {"1": 0.5}


def test_the_policys_own_failures_count_against_it():
    result = summarize([judged("a", [True]), judged("b", [FailureClass.AGENT])], 1)
    assert (result.success, result.tasks, result.failed) == (0.5, 2, {"agent": 1})


def test_an_evaluation_in_which_everything_failed_says_why():
    with pytest.raises(InfrastructureError, match="every episode failed: infrastructure broke"):
        summarize([judged("a", [FailureClass.INFRASTRUCTURE] * 2)], 2)


def test_the_summary_shows_success_where_the_environment_judges_it_and_reward_elsewhere():
    result = summarize([judged(str(i), [i < 8], reward_scale=2.0) for i in range(10)], 1)
    block = eval_block(result)
    assert (block["mean"], block["reward"], block["tasks"], block["samples"]) == (0.8, 1.6, 10, 1)
    assert (block["ci_low"], block["ci_high"]) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    unjudged = summarize([group("a", [0.25, 0.75]), group("b", [0.5, 0.5])], 2)
    assert unjudged.success is None
    assert eval_block(unjudged)["mean"] == 0.5
    assert eval_block(None) is None


def test_one_line_describes_a_result():
    result = summarize([judged("a", [True, FailureClass.INFRASTRUCTURE]), judged("b", [False, True])], 2)
    assert describe(result).startswith("reward 0.750 [")
    assert describe(result).endswith("over 2 tasks, success 0.750, failed episodes {'infrastructure': 1}")


def test_a_single_task_has_a_mean_and_no_interval_in_valid_json():
    result = summarize([judged("a", [True, True, False, True])], 4)
    block = eval_block(result)
    assert (block["mean"], block["ci_low"], block["ci_high"], block["success_ci"]) == (0.75, None, None, None)
    json.dumps([block, result.to_json()], allow_nan=False)
    assert describe(result) == "reward 0.750 over 1 tasks, success 0.750"
