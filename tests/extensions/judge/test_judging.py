"""What a judgement does to an episode."""

import asyncio

import pytest

from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.judging import Judging, with_score
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.types import FailureClass, Status, Task
from tests.chat.test_conversation import make_player as make_team
from tests.rollout.test_episode import Scripted, make_player
from tests.train.factories import trajectory


class Fixed:
    def __init__(self, score):
        self.value, self.asked = score, []

    async def score(self, request):
        self.asked.append(request)
        if self.value is None:
            raise JudgeError("the judge is asleep")
        return self.value


def judged(judging, episode):
    (found,) = asyncio.run(judging.apply([episode], Task("t", "e", 0), [{"role": "user", "content": "hi"}]))
    return found


def test_a_score_replaces_the_environments_rewards_on_every_turn():
    found = judged(Judging(Fixed(0.25)), trajectory(turns=3, reward=1.0))
    assert [turn.reward for turn in found.turns] == [0.0, 0.0, 0.25]
    assert (found.reward, found.components["judge"]) == (0.25, 0.25)


def test_an_added_score_is_weighted_and_credited_to_the_last_turn():
    found = judged(Judging(Fixed(0.5), "add", weight=0.2), trajectory(turns=2, reward=1.0))
    assert [turn.reward for turn in found.turns] == [0.0, pytest.approx(1.1)]
    assert found.reward == pytest.approx(1.1)
    assert found.components["goal"] == 1.0


def test_the_judge_reads_the_conversation_and_the_environments_reward():
    judge = Fixed(0.5)
    judged(Judging(judge), trajectory(reward=1.0))
    (request,) = judge.asked
    assert (request.task.id, request.reward) == ("t", 1.0)
    assert request.messages == ({"role": "user", "content": "hi"},)


def test_without_a_judgement_the_episode_fails_in_a_class_of_its_own():
    found = judged(Judging(Fixed(None)), trajectory(reward=1.0))
    assert (found.status, found.failure) == (Status.FAILED, FailureClass.JUDGE)
    assert found.error == "the judge is asleep"
    assert not found.usable


def test_an_episode_without_turns_keeps_the_score_as_its_reward():
    assert with_score(trajectory(turns=0), 0.75, "replace").reward == 0.75


def test_a_played_episode_is_judged_by_all_that_was_said_in_it(renderer):
    judge = Fixed(0.25)
    player = make_player(renderer, Scripted(renderer), judging=Judging(judge), max_turns=2)
    task = Task("t", "tests.rollout.test_episode:Endless", 0)
    found = asyncio.run(player.play(EpisodeRequest(task, 0, "e")))[0]
    (request,) = judge.asked
    goal = {"role": "user", "content": "goal"}
    north = {"role": "assistant", "content": "north"}
    assert list(request.messages) == [goal, north, goal, north, goal]
    assert (request.reward, found.reward) == (0.5, 0.25)
    assert found.timing["judge_s"] >= 0


def test_an_episode_that_failed_is_not_judged(renderer):
    judge = Fixed(0.25)
    player = make_player(renderer, Scripted(renderer), judging=Judging(judge))
    found = asyncio.run(
        player.play(EpisodeRequest(Task("t", "tests.rollout.test_episode:Broken", 0), 0, "e"))
    )[0]
    assert (found.failure, judge.asked) == (FailureClass.ENVIRONMENT, [])


@pytest.mark.parametrize(("mode", "rewards"), [("replace", [0.25] * 3), ("add", [1.75, 2.375, 4.5])])
def test_every_agent_of_an_episode_gets_the_score(renderer, mode, rewards):
    player = make_team(renderer, Judging(Fixed(0.25), mode))
    found = asyncio.run(
        player.play(EpisodeRequest(Task("t", "tests.chat.test_conversation:Asking", 0), 0, "e"))
    )
    assert [t.reward for t in found] == rewards
    assert [t.components["judge"] for t in found] == [0.25] * 3
    assert found[0].turns[-1].reward == (0.25 if mode == "replace" else 1.25)


def test_no_agent_of_an_episode_without_a_judgement_is_trained_with_the_environments_reward(renderer):
    player = make_team(renderer, Judging(Fixed(None)))
    found = asyncio.run(
        player.play(EpisodeRequest(Task("t", "tests.chat.test_conversation:Asking", 0), 0, "e"))
    )
    assert [(t.failure, t.usable) for t in found] == [(FailureClass.JUDGE, False)]
