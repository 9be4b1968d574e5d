"""A group's most frequent answer is its reward: who agrees, ties, silence, failures, and where it is wrong."""

import asyncio
import json
from dataclasses import replace

import pytest

from asyncrl.config import parse_config
from asyncrl.data.codec import decode_group, encode_group
from asyncrl.env.protocol import Env, Step
from asyncrl.errors import ConfigError
from asyncrl.extensions.majority.reward import MajorityReward, answer_of, configured, majority
from asyncrl.launch.checks.check import check_rewards, env_needs
from asyncrl.rollout.group import EpisodeGroupRunner
from asyncrl.rollout.group_reward import group_rewards
from asyncrl.rollout.strategies.group_rewards import GroupRewards, rewarded
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import EXTRACTED, FailureClass, Lease, Status, Task
from tests.rollout.test_episode import Scripted, make_player
from tests.train.factories import trajectory


class Once(Env):
    """One question, which it cannot judge."""

    blocking = False
    max_turns = 1

    def reset(self):
        return [{"role": "user", "content": "3 + 4 ="}]

    def step(self, action):
        return Step(done=True)


TASK = Task("t", "dataset")
MINIMAL = {"model": {"path": "m"}, "env": {"name": "gridworld"}}


def said(text, index=0, **fields):
    """An episode that ended with this answer, to be extracted by whoever asks."""
    conversation = json.dumps(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": text, "turn": 0}]
    )
    return replace(trajectory("t", index, turns=1, reward=0.5), conversation=conversation, info={}, **fields)


def voted(*episodes, **settings):
    """The episodes of a group after a vote."""
    reward = MajorityReward(**{"mode": "replace", **settings})
    return [one[0] for one in asyncio.run(rewarded(reward, TASK, [(episode,) for episode in episodes]))]


def rewards(*episodes, **settings):
    return [one.reward for one in voted(*episodes, **settings)]


@pytest.mark.parametrize(
    ("answers", "least_share", "expected"),
    [
        ([7, 7, 9, None], 0.0, 7),
        ([7, 7, 9, 9, 3], 0.0, None),  # a tie
        ([7, 8, 9], 0.0, None),  # nobody agrees
        ([7, None, None], 0.0, None),  # nobody else gives it
        ([None, None], 0.0, None),
        ([], 0.0, None),
        ([7, 7, 9, None], 0.5, 7),  # two of four, silent ones included
        ([7, 7, 9, None], 0.51, None),
    ],
)
def test_the_majority_is_the_one_most_frequent_answer_that_several_give(answers, least_share, expected):
    assert majority(answers, least_share) == expected


def test_who_agrees_is_rewarded_in_place_of_the_environments_reward():
    found = voted(
        said("It is 7."), said("\\boxed{7.0}", 1), said("The answer is 9.", 2), said("I do not know", 3)
    )
    assert [one.reward for one in found] == [1.0, 1.0, 0.0, 0.0]
    assert [one.turns[-1].reward for one in found] == [1.0, 1.0, 0.0, 0.0]
    assert [one.components["majority"] for one in found] == [1.0, 1.0, 0.0, 0.0]
    assert {one.components["majority_undecided"] for one in found} == {0.0}


def test_agreement_may_be_weighed_and_added():
    assert rewards(said("7"), said("7", 1), said("9", 2), mode="add", weight=2.0) == [2.5, 2.5, 0.5]


@pytest.mark.parametrize("answers", [["7", "7", "9", "9"], ["7", "8", "9"], ["7", "", ""], [""] * 3])
def test_nobody_is_rewarded_where_nothing_is_decided(answers):
    found = voted(*(said(text, index) for index, text in enumerate(answers)))
    assert [one.reward for one in found] == [0.0] * len(answers)
    assert {one.components["majority_undecided"] for one in found} == {1.0}
    assert not any("majority_wrong" in one.components for one in found)
    assert all(one.usable for one in found)


def test_an_episode_that_was_cut_off_does_not_vote_and_earns_nothing():
    cut = [said("7", index, status=Status.TRUNCATED) for index in (2, 3, 4)]
    assert rewards(said("9"), said("9", 1), *cut) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert answer_of(cut[0]) is None


def test_what_the_environment_took_for_the_answer_is_what_votes():
    letters = [replace(said("7", index), info={EXTRACTED: letter}) for index, letter in enumerate("BBC")]
    assert rewards(*letters) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("failure", list(FailureClass))
def test_failed_episodes_are_no_part_of_the_vote_and_stay_failed(failure):
    failed = [
        replace(trajectory("t", index, failure=failure), conversation=said("9").conversation)
        for index in (2, 3, 4)
    ]
    found = voted(said("7"), said("7", 1), *failed)
    assert [one.reward for one in found[:2]] == [1.0, 1.0]
    assert found[2:] == failed
    assert [one.components for one in found[2:]] == [one.components for one in failed]


def test_a_group_that_failed_whole_is_left_as_it_is():
    failed = [trajectory("t", index, failure=FailureClass.INFRASTRUCTURE) for index in range(3)]
    assert voted(*failed) == failed


def test_a_majority_is_wrong_where_the_environment_calls_no_voter_right():
    wrong = voted(*(said(text, n, success=text == "9") for n, text in enumerate(["7", "7", "9"])))
    assert [one.components["majority_wrong"] for one in wrong] == [1.0, 1.0, 1.0]
    assert [one.reward for one in wrong] == [1.0, 1.0, 0.0]
    assert [one.success for one in wrong] == [False, False, True]
    right = voted(*(said(text, n, success=text == "7") for n, text in enumerate(["7", "7", "9"])))
    assert [one.components["majority_wrong"] for one in right] == [0.0, 0.0, 0.0]


def test_all_trajectories_of_an_episode_share_its_reward():
    episodes = [(said("7", n), trajectory("t", n, turns=2)) for n in range(3)]
    found = asyncio.run(rewarded(MajorityReward("replace"), TASK, episodes))
    assert [[one.reward for one in episode] for episode in found] == [[1.0, 1.0]] * 3


def test_a_group_is_played_and_voted_on_by_what_the_policy_said(renderer):
    class Voices:
        """Answers episodes in turn."""

        def __init__(self, *words):
            self.voices = [Scripted(renderer, word) for word in words]

        async def generate(self, request):
            return await self.voices.pop(0).generate(request)

    player = make_player(renderer, Voices("7", "9", "7"))
    runner = EpisodeGroupRunner(player, [GroupRewards([MajorityReward("replace")])])
    task = Task("t", f"{__name__}:Once")
    group = asyncio.run(runner.run_group(Lease("l", task, 0, 1, 3, 1, 60.0), "w", 20.0))
    assert sorted((one.reward, one.success) for one in group.trajectories) == [
        (0.0, None),
        (1.0, None),
        (1.0, None),
    ]
    assert [t.components for t in decode_group(encode_group(group)).trajectories] == [
        t.components for t in group.trajectories
    ]


def test_a_run_has_it_where_it_is_asked_for():
    assert group_rewards(WorkerContext(parse_config(MINIMAL))) == ()
    config = parse_config({**MINIMAL, "majority": {"mode": "add", "weight": 0.5, "least_share": 0.25}})
    assert group_rewards(WorkerContext(config)) == (MajorityReward("add", 0.5, 0.25),)
    assert configured(WorkerContext(config)).mode == "add"


def test_rows_without_answers_need_no_reward_and_objectives_may_read_its_components():
    rows = {"model": {"path": "m"}, "data": {"train": "rows.jsonl"}}
    with pytest.raises(ConfigError, match="for rows without answers"):
        check_rewards(parse_config(rows))
    check_rewards(parse_config({**rows, "majority": {"mode": "replace"}}))
    gdpo = {**MINIMAL, "algo": {"preset": "gdpo"}}
    assert "components" in env_needs(parse_config(gdpo))
    assert "components" not in env_needs(parse_config({**gdpo, "majority": {"mode": "replace"}}))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"majority": {"weight": 2.0}}, "majority.weight: is not read with majority.mode='off', got 2"),
        ({"majority": {"least_share": 0.5}}, "majority.least_share: is not read"),
        ({"majority": {"mode": "replace", "least_share": 1.5}}, "least_share"),
        ({"majority": {"mode": "replace"}, "rollout": {"group_size": 2}}, "group_size must be at least 3"),
        ({"majority": {"mode": "replace"}, "env": {"name": "agent"}}, "an agent reports its own reward"),
        ({"majority": {"mode": "replace"}, "judge": {"url": "http://j"}}, "majority.mode='add' adds to it"),
        (
            {"majority": {"mode": "add"}, "opponents": {"choose": "uniform"}, "lora": {"rank": 4}},
            "opponents.choose",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings, problem):
    with pytest.raises(ConfigError, match=problem):
        parse_config({**MINIMAL, **settings})


def test_a_judge_may_be_added_to():
    parse_config({**MINIMAL, "majority": {"mode": "add"}, "judge": {"url": "http://j"}})


def test_an_objective_with_a_greedy_baseline_is_refused():
    from asyncrl.config_checks import check_objective

    settings = {**MINIMAL, "algo": {"preset": "remax"}, "majority": {"mode": "replace"}}
    with pytest.raises(ConfigError, match="greedy baseline"):
        check_objective(parse_config(settings))
