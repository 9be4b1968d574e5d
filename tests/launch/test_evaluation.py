"""Evaluation results: whose failures count, what a rate is over, and what the summary shows."""

import asyncio
import dataclasses
import json
from itertools import islice

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from asyncrl.config import parse_config
from asyncrl.data.codec import encode_group, pack, unpack
from asyncrl.env.registry import load_env
from asyncrl.errors import InfrastructureError
from asyncrl.launch.evaluation.evaluate import evaluate_with, summarize, task_timeout_s
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


class Worker:
    """A stand-in for a rollout worker that plays each task in `play_s`, or breaks the connection."""

    def __init__(self, play_s, breaks=()):
        self.play_s, self.breaks = play_s, set(breaks)
        self.calls, self.playing, self.most = [], 0, 0

    async def rollouts(self, request):
        (task,) = unpack(await request.read())["tasks"]
        self.calls.append(task["id"])
        if task["id"] in self.breaks:
            self.breaks.remove(task["id"])
            request.transport.close()
            return web.Response()
        self.playing += 1
        self.most = max(self.most, self.playing)
        await asyncio.sleep(self.play_s)
        self.playing -= 1
        return web.Response(body=pack({"groups": [encode_group(group(task["id"], [1.0]))]}))

    def evaluate(self, config, tasks, retry_s=10.0):
        async def run():
            app = web.Application()
            app.router.add_post("/v1/rollouts", self.rollouts)
            server = TestServer(app)
            await server.start_server()
            try:
                url = str(server.make_url("")).rstrip("/")
                return await evaluate_with(url, config, "gridworld", tasks, 1, "token", retry_s)
            finally:
                await server.close()

        return asyncio.run(run())


def eval_config(**rollout):
    return parse_config(
        {
            "model": {"path": "m"},
            "env": {"name": "gridworld"},
            "engine": {"max_num_seqs": 2, "count": 2},
            "rollout": {"episode_timeout_s": 1.0, "lease_s": 1.0, **rollout},
        }
    )


@pytest.mark.slow
def test_an_evaluation_has_time_for_each_task_and_not_for_all_of_them_together(monkeypatch):
    monkeypatch.setattr("asyncrl.launch.evaluation.evaluate.task_timeout_s", lambda config: 2.0)
    worker = Worker(play_s=0.5)
    assert worker.evaluate(eval_config(), 24).tasks == 24  # 3 s in rounds of 4
    assert worker.most == 4
    slow = Worker(play_s=30.0)
    with pytest.raises(
        InfrastructureError,
        match=r"task '.*' was not played within 2 s, nor was another; .*episode_timeout_s",
    ):
        slow.evaluate(eval_config(), 1)


@pytest.mark.slow
def test_a_task_has_time_as_long_as_others_are_played(monkeypatch):
    monkeypatch.setattr("asyncrl.launch.evaluation.evaluate.task_timeout_s", lambda config: 2.0)

    class Shared(Worker):
        async def rollouts(self, request):
            self.play_s = 5.0 if not self.calls else 0.5
            return await super().rollouts(request)

    worker = Shared(play_s=0.5)
    # The first task takes 5 s, and three at a time of the others half a second each.
    assert worker.evaluate(eval_config(), 36).tasks == 36


def test_the_time_of_a_task_covers_every_attempt_at_it():
    # 3 attempts that wait 1 + 1 + 90 s for a place and play for 1 s.
    assert task_timeout_s(eval_config()) == 3 * (1 + 1 + 90 + 1)


def test_only_tasks_whose_call_broke_are_played_again():
    names = [task.id for task in islice(load_env("gridworld").tasks("heldout", "gridworld"), 6)]
    worker = Worker(0.0, names[:2])
    assert worker.evaluate(eval_config(), 6).tasks == 6
    assert sorted(worker.calls) == sorted([*names, *names[:2]])
    with pytest.raises(InfrastructureError, match="evaluation: http"):
        Worker(0.0, names[:1]).evaluate(eval_config(), 1, retry_s=0.0)
