"""The right answer of a task goes to the trainer with its trajectories, as the tokens a policy would sample."""

import asyncio

import pytest

from asyncrl.chat.renderer import Limits
from asyncrl.chat.tool_calls import parse_hermes
from asyncrl.envs.calculator.env import Calculator
from asyncrl.errors import EnvironmentFailure
from asyncrl.rollout.episode import ChatPlayer, EpisodeSettings
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.strategies.answers import Answers, answer_ids
from asyncrl.services.env.client import LocalEnvs
from asyncrl.types import FailureClass, Lease, Status, Task
from tests.extensions.branches.test_strategy import ENV, Walker


def run(renderer, task):
    player = ChatPlayer(
        Walker(renderer), LocalEnvs(), renderer, parse_hermes, EpisodeSettings(Limits(0, 16, 400))
    )
    runner = EpisodeGroupRunner(player, [Answers(renderer.assistant)])
    lease = Lease("l", task, 3, 5, 2, 1, 60.0)
    return asyncio.run(runner.run_group(lease, "w", 20.0)).trajectories


def test_every_trajectory_of_a_group_has_the_answers_tokens(renderer):
    expected = renderer.assistant({"role": "assistant", "content": "south"}).tolist()
    for answer in ("south", {"role": "assistant", "content": "south"}):
        played = run(renderer, Task("t", ENV, data={"answer": answer}))
        assert [t.info["answer_ids"] for t in played] == [expected, expected]
        assert all(t.status is Status.FINISHED for t in played)


def test_a_task_without_an_answer_fails_its_group_and_says_why(renderer):
    for data in ({}, {"answer": 7}):
        with pytest.raises(EnvironmentFailure, match="reads how likely the right answer is"):
            answer_ids(Task("t", ENV, data=data), renderer.assistant)
    played = run(renderer, Task("t", ENV))
    assert [t.failure for t in played] == [FailureClass.ENVIRONMENT] * 2
    assert "'answer', a text or message; got None" in played[0].error


def test_the_calculators_tasks_have_the_answer_that_it_accepts():
    for _, task in zip(range(5), Calculator.tasks("train", "calculator", limit=50), strict=False):
        assert task.data == {"answer": str(Calculator(task, limit=50).answer)}
