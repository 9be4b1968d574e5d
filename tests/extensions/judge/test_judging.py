"""What a judgement does to an episode."""

import asyncio
import json
from dataclasses import replace

import pytest

from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.functions import Functions
from asyncrl.extensions.judge.judging import Judging
from asyncrl.extensions.judge.questions import OVERALL, Scores
from asyncrl.extensions.judge.settings import ComponentConfig
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.verdict import Verdict, with_verdict
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
        return Scores({OVERALL: self.value})


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
    assert with_verdict(trajectory(turns=0), Verdict(0.75, {}), "replace").reward == 0.75


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


class Scored(Fixed):
    """Gives the scores it was made with."""

    async def score(self, request):
        self.asked.append(request)
        return self.value


def transcribed(turns, reward=0.0):
    """A trajectory whose transcript has its turns."""
    items = [{"role": "user", "content": "q"}]
    for turn in range(turns):
        items += [
            {"role": "assistant", "content": f"a{turn}", "turn": turn},
            {"role": "tool", "content": "r"},
        ]
    return replace(trajectory(turns=turns, reward=reward), conversation=json.dumps(items))


def judged_whole(judging, episode):
    messages = json.loads(episode.conversation)
    (found,) = asyncio.run(judging.apply([episode], Task("t", "e", 0), messages))
    return found


def test_the_reward_is_the_weighted_sum_of_components_which_are_kept_as_they_are():
    scores = Scored(Scores({"right": 0.5, "brief": 1.0}))
    found = judged(Judging(scores, weight=2.0, weights={"right": 3.0, "brief": -1.0}), trajectory(reward=1.0))
    assert found.reward == pytest.approx(2.0 * (3.0 * 0.5 - 1.0))
    assert found.components == {"goal": 1.0, "form": 0.0, "judge_right": 0.5, "judge_brief": 1.0}


@pytest.mark.parametrize(
    ("mode", "rewards"), [("replace", [0.2, 0.1, 0.0 + 0.5]), ("add", [0.2, 0.1, 1.0 + 0.5])]
)
def test_each_turn_earns_its_own_score_over_the_number_of_turns(mode, rewards):
    scores = Scored(Scores({OVERALL: 0.5}, {0: 0.6, 1: 0.3, 2: 0.0}))
    found = judged_whole(Judging(scores, mode, per_turn=True), transcribed(3, reward=1.0))
    assert [turn.reward for turn in found.turns] == pytest.approx(rewards)
    assert found.reward == pytest.approx(sum(rewards))
    assert found.components["judge"] == 0.5
    assert found.components["judge_turns"] == pytest.approx(0.3)


def test_turns_of_which_the_judge_saw_nothing_are_no_turns_without_reward():
    scores = Scored(Scores({OVERALL: 0.5}))
    found = judged(Judging(scores, per_turn=True), trajectory(turns=2))
    assert (found.failure, scores.asked) == (FailureClass.JUDGE, [])
    assert "the transcript has 0 of 2 turns" in found.error


def test_a_turn_that_was_cut_off_is_read_and_scored(renderer):
    judge = Scored(Scores({OVERALL: 0.0}, {0: 1.0}))
    player = make_player(
        renderer, Scripted(renderer, cut=True), judging=Judging(judge, per_turn=True), max_turns=2
    )
    task = Task("t", "tests.rollout.test_episode:Endless", 0)
    found = asyncio.run(player.play(EpisodeRequest(task, 0, "e")))[0]
    assert found.status is Status.TRUNCATED
    assert judge.asked[0].messages[-1]["role"] == "assistant"
    assert "north" in judge.asked[0].messages[-1]["content"]
    assert found.turns[0].reward == 1.0


FUNCTION = """
def length(completion, limit):
    return len(completion) / limit

def broken(completion):
    raise RuntimeError("no idea")
"""


@pytest.fixture
def functions(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    made = []

    def make(name):
        path = f"{tmp_path}/mine.py:{name}"
        made.append(Functions({"short": ComponentConfig(function=path)}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def answered(judging, **data):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "four"}]
    (found,) = asyncio.run(judging.apply([trajectory()], Task("t", "e", 0, data=data), messages))
    return found


def test_a_function_scores_a_component_from_the_answer_and_the_row(functions):
    scores = Scored(Scores({"right": 1.0}))
    judging = Judging(scores, weights={"right": 1.0, "short": -0.5}, functions=functions("length"))
    found = answered(judging, limit=8)
    assert found.components["judge_short"] == 0.5
    assert found.reward == pytest.approx(1.0 - 0.25)


def test_functions_alone_score_without_a_server(functions):
    found = answered(Judging(None, weights={"short": 2.0}, functions=functions("length")), limit=4)
    assert (found.reward, found.components["judge_short"]) == (2.0, 1.0)


def test_a_function_that_fails_has_judged_nothing(functions):
    found = answered(Judging(None, weights={"short": 2.0}, functions=functions("broken")))
    assert (found.status, found.failure) == (Status.FAILED, FailureClass.INFRASTRUCTURE)
    assert "no idea" in found.error
