"""Groups that are asked for a length: what the policy reads, and what its episodes earn."""

import asyncio
from dataclasses import replace

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.length.settings import LengthConfig
from asyncrl.extensions.length.strategy import LengthRewards
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.types import FailureClass, Lease, Task
from tests.train.factories import trajectory

TASK = Task("t0", "gridworld")
LEASE = Lease("l", TASK, 0, 1, 3, 1, 60.0, order=7)
OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "3 + 4 ="}]


def played(given, rewards=(1.0, 0.0, 1.0), failed=(), lease=LEASE, longest=1000, seed=0):
    """The episodes of a group, each with 6 sampled tokens in two turns, and what their requests read."""
    read = []

    async def play(requests):
        read.extend(one.opening([dict(message) for message in OPENING]) for one in requests)
        episodes = []
        for one in requests:
            failure = FailureClass.INFRASTRUCTURE if one.index in failed else None
            t = trajectory("t0", one.index, reward=rewards[one.index], failure=failure)
            t = replace(t, success=None if failure else rewards[one.index] == 1.0)
            episodes.append((t, trajectory("t0", one.index, reward=0.25)))
        return episodes

    strategy = LengthRewards(LengthConfig(**given), longest, seed)
    requests = [EpisodeRequest(TASK, index, f"e{index}") for index in range(3)]
    return asyncio.run(strategy.play(lease, "w", requests, play)), read


@pytest.mark.parametrize(
    ("mode", "words"), [("exact", "Think for 9 tokens."), ("max", "Think for maximum 9 tokens.")]
)
def test_all_episodes_of_a_group_are_asked_for_one_length(mode, words):
    _, read = played({"mode": mode, "least_target": 9, "most_target": 9})
    asked = [OPENING[0], {"role": "user", "content": f"3 + 4 =\n\n{words}"}]
    assert read == [asked] * 3


def test_the_distance_enters_the_reward_of_the_last_turn_and_is_a_component():
    found, _ = played({"mode": "exact", "least_target": 9, "most_target": 9, "alpha": 0.1})
    # 6 tokens of 9: 0.3 less.
    assert [one[0].reward for one in found] == pytest.approx([0.7, -0.3, 0.7])
    assert [one[0].turns[-1].reward for one in found] == pytest.approx([0.7, -0.3, 0.7])
    assert [one[0].components["length"] for one in found] == pytest.approx([-0.3] * 3)
    assert {one[0].components["length_target"] for one in found} == {9.0}
    # The further agents of an episode were asked for nothing.
    assert [one[1].reward for one in found] == [0.25] * 3


def test_a_limit_takes_a_share_of_what_is_earned():
    found, _ = played({"mode": "max", "least_target": 9, "most_target": 9, "alpha": 0.1, "delta": 0.5})
    assert [one[0].reward for one in found] == pytest.approx([0.8, 0.0, 0.8])


def test_tokens_cost_by_the_share_of_the_episodes_that_did_not_fail():
    found, read = played({"mode": "adaptive", "weight": 0.5}, failed=(1,))
    # Two of two succeed: 6 tokens of 1000 cost 0.5 * 6 / 1000.
    assert [one[0].reward for one in found if one[0].failure is None] == pytest.approx([0.997, 0.997])
    assert (found[1][0].reward, found[1][0].failure) == (0.0, FailureClass.INFRASTRUCTURE)
    assert "length" not in found[1][0].components
    assert read == [OPENING] * 3


def test_a_group_that_failed_whole_is_left_as_it_is():
    found, _ = played({"mode": "adaptive"}, failed=(0, 1, 2))
    assert all(one[0].failure for one in found)


def test_lengths_are_drawn_between_the_bounds_by_task_and_again_the_same():
    strategy = LengthRewards(LengthConfig(mode="exact", least_target=5, most_target=8), 100, seed=3)
    leases = [replace(LEASE, id=str(n), order=n) for n in range(200)]
    drawn = [strategy.target(one) for one in leases]
    assert set(drawn) == {5, 6, 7, 8}
    assert drawn == [strategy.target(replace(one, attempt=2)) for one in leases]
    assert drawn != [LengthRewards(strategy.given, 100, seed=4).target(one) for one in leases]


def test_a_task_with_images_and_one_without_a_users_message():
    strategy = LengthRewards(LengthConfig(mode="exact", least_target=5, most_target=5), 100, 0)
    image = {"type": "image"}
    found = []

    async def play(requests):
        opening = requests[0].opening
        found.append(opening([{"role": "user", "content": [image]}]))
        with pytest.raises(EnvironmentFailure, match="no message of the user"):
            opening([{"role": "system", "content": "s"}])
        return [(trajectory(),)]

    asyncio.run(strategy.play(LEASE, "w", [EpisodeRequest(TASK, 0, "e")], play))
    assert found == [[{"role": "user", "content": [image, {"type": "text", "text": "Think for 5 tokens."}]}]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": {"alpha": 0.1}}, "length.alpha: is not read with length.mode='off'"),
        ({"length": {"mode": "exact", "delta": 0.1, "most_target": 200}}, "length.delta: is not read"),
        ({"length": {"mode": "adaptive", "most_target": 200}}, "length.most_target: is not read"),
        (
            {"length": {"mode": "exact", "least_target": 9, "most_target": 8}},
            "length.least_target: must be at most",
        ),
        (
            {"length": {"mode": "max", "most_target": 512}, "engine": {"max_model_len": 512}},
            "length.most_target: must be below engine.max_model_len=512",
        ),
        (
            {"length": {"mode": "adaptive"}, "rollout": {"branches": 1}},
            "rollout.branches must be 0 with length.mode='adaptive'",
        ),
    ],
)
def test_settings_that_contradict_are_refused(given, message):
    with pytest.raises(ConfigError) as refused:
        parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}, **given})
    assert message in str(refused.value)
