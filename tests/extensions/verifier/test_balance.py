"""Verdicts of a group, compared with those on episodes that ended alike."""

import asyncio

import numpy as np
import pytest

from asyncrl.config import parse_config
from asyncrl.extensions.verifier.balance import BALANCED_ACCURACY, ByKind, balanced, configured, kind_means
from asyncrl.extensions.verifier.env import AGREES, TRUE_NEGATIVE, TRUE_POSITIVE
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.rollout.strategies.table import STRATEGIES
from asyncrl.types import Lease, Status, Task, Trajectory, Turn

WRONG, RIGHT = TRUE_NEGATIVE, TRUE_POSITIVE


def test_verdicts_are_compared_with_those_on_their_own_kind():
    # Of three right episodes two are called so, of two wrong ones one: 2/3 and 1/2, on average 7/12.
    found = balanced([1, 1, 0, 1, 0], [RIGHT, RIGHT, RIGHT, WRONG, WRONG])
    assert found == pytest.approx(
        [7 / 12 + 5 / 18, 7 / 12 + 5 / 18, 7 / 12 - 5 / 9, 7 / 12 + 5 / 8, 7 / 12 - 5 / 8]
    )
    assert np.mean(found) == pytest.approx(7 / 12)


def test_a_verifier_that_always_says_the_same_has_nothing_to_learn_from():
    assert balanced([1, 1, 1, 0], [RIGHT, RIGHT, RIGHT, WRONG]) == pytest.approx([0.5] * 4)


def test_of_one_kind_alone_the_scores_stay():
    assert balanced([1, 0, 0.5], [RIGHT] * 3) == pytest.approx([1, 0, 0.5])
    assert balanced([], []) == []


def test_means_are_by_kind():
    assert kind_means([1, 0, 1], [RIGHT, RIGHT, WRONG]) == {RIGHT: 0.5, WRONG: 1.0}


def test_both_kinds_pull_alike_however_many_there_are_of_each():
    rng = np.random.default_rng(0)
    kinds = [RIGHT] * 13 + [WRONG] * 3
    scores = rng.integers(0, 2, 16).astype(float)
    middle = np.mean(list(kind_means(list(scores), kinds).values()))
    gains = np.array(balanced(list(scores), kinds)) - middle
    # What a kind's verdicts gain by agreeing, on average over its verdicts times their number.
    for kind, of_kind in ((RIGHT, slice(0, 13)), (WRONG, slice(13, 16))):
        mine = scores[of_kind] - scores[of_kind].mean()
        assert gains[of_kind] == pytest.approx(mine * 16 / (2 * kinds.count(kind)))


def trajectory(index, reward, components, agent=""):
    info = {"agent": agent, "agent_name": agent} if agent else {}
    return Trajectory(
        task_id="t",
        episode_index=index,
        token_ids=np.arange(3, dtype=np.int32),
        loss_mask=np.array([False, True, True]),
        behavior_logprobs=np.zeros(3, np.float32),
        versions=np.zeros(3, np.int32),
        turns=(Turn(1, 3, reward=reward),),
        reward=reward,
        status=Status.FINISHED,
        components=components,
        info=info,
    )


def verified(*found):
    """Episodes of a main agent and its verifier: whether the first was right, and whether the second agrees."""
    return [
        (
            trajectory(i, float(right), {}),
            trajectory(
                i,
                float(agrees),
                {AGREES: float(agrees), RIGHT if right else WRONG: float(agrees)},
                "verifier",
            ),
        )
        for i, (right, agrees) in enumerate(found)
    ]


def grouped(strategy, episodes):
    async def play(requests):
        return episodes

    lease = Lease("l", Task("t", "verified", 0), 0, 1, len(episodes), 1, 60.0)
    return asyncio.run(strategy.play(lease, "w", [], play))


def test_a_group_notes_its_balanced_accuracy_and_rewards_by_it():
    found = grouped(ByKind(), verified((True, True), (True, False), (False, True)))
    # Of the right ones half are called so, the wrong one is: 3/4; the verdicts on right ones gain 3/4 times 1/2.
    assert [one[1].reward for one in found] == pytest.approx([0.75 + 0.375, 0.75 - 0.375, 0.75])
    assert [one[1].turns[-1].reward for one in found] == pytest.approx([1.125, 0.375, 0.75])
    assert {one[1].components[BALANCED_ACCURACY] for one in found} == {0.75}
    assert [one[0].reward for one in found] == [1.0, 1.0, 0.0]
    assert all(BALANCED_ACCURACY not in one[0].components for one in found)


def test_without_balance_it_notes_it_alone():
    found = grouped(ByKind(rewarded=False), verified((True, True), (True, False), (False, True)))
    assert [one[1].reward for one in found] == [1.0, 0.0, 1.0]
    assert {one[1].components[BALANCED_ACCURACY] for one in found} == {0.75}


def test_of_one_kind_alone_there_is_no_balanced_accuracy():
    found = grouped(ByKind(), verified((True, True), (True, False)))
    assert [one[1].reward for one in found] == pytest.approx([1.0, 0.0])
    assert all(BALANCED_ACCURACY not in one[1].components for one in found)


def test_episodes_without_a_verdict_stay_as_they_are():
    alone = (trajectory(0, 0.5, {}),)
    cut = (trajectory(1, 1.0, {}), trajectory(1, 0.0, {}, "verifier"))
    assert grouped(ByKind(), [alone, cut]) == [alone, cut]


@pytest.mark.parametrize(("config", "rewarded"), [({}, True), ({"balanced": False}, False)])
def test_a_run_whose_environment_is_verified_has_it(config, rewarded):
    recipe = {
        "model": {"path": "m"},
        "env": {"name": "verified", "config": {"tasks": "calculator"} | config},
        "policies": {"verifier": {"agents": ["verifier"]}},
    }
    parts = WorkerParts(parse_config(recipe), None, None, None)
    assert STRATEGIES["verifier"].wanted(parts)
    assert configured(parts) == ByKind(rewarded)
    parts = WorkerParts(parse_config(recipe | {"env": {"name": "calculator"}}), None, None, None)
    assert not STRATEGIES["verifier"].wanted(parts)
