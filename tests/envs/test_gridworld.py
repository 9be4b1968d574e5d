"""Gridworld: what a player sees, what moves do, what earns a reward."""

import random
from itertools import islice

import pytest

from asyncrl.env.protocol import Action
from asyncrl.envs.gridworld.env import Gridworld
from asyncrl.types import Task


def make(seed=0, **config):
    return Gridworld(Task("t", "gridworld", seed), **config)


def play(env, policy):
    messages, total = list(env.reset()), 0.0
    while True:
        message = policy(messages)
        step = env.step(Action(message["content"]))
        total += step.reward
        if step.done:
            return total, step
        messages += [message, *step.messages]


def test_the_observation_names_only_the_directions_that_lead_to_the_goal():
    env = make()
    env.x, env.y, env.goal_x, env.goal_y = 1, 1, 3, 0
    assert env.reset() == [{"role": "user", "content": "goal south east"}]
    env.goal_y = 1
    assert env.reset() == [{"role": "user", "content": "goal east"}]


def test_a_move_into_the_border_and_an_unknown_word_cost_the_turn_and_stay_in_place():
    env = make()
    env.x, env.y, env.goal_x, env.goal_y = 0, 0, 2, 2
    step = env.step(Action("west"))
    assert (env.x, env.y, step.done, step.components["invalid"]) == (0, 0, False, 0.0)
    step = env.step(Action("jump"))
    assert (env.x, env.y, step.components["invalid"]) == (0, 0, 1.0)


def test_a_word_that_the_observation_names_matches():
    env = make()
    env.x, env.y, env.goal_x, env.goal_y = 0, 0, 2, 2
    assert [env.step(Action(word)).matches for word in ("north", "west", "East", "jump")] == [
        True, False, True, False,
    ]  # fmt: skip


def test_reaching_the_goal_ends_the_episode_with_reward_one():
    env = make()
    env.x, env.y, env.goal_x, env.goal_y = 0, 0, 1, 0
    step = env.step(Action(" East "))
    assert (step.reward, step.done, step.success) == (1.0, True, True)


def test_running_out_of_turns_ends_the_episode_without_reward():
    env = make(max_turns=2)
    env.x, env.y, env.goal_x, env.goal_y = 0, 0, 1, 1
    assert not env.step(Action("west")).done
    step = env.step(Action("west"))
    assert (step.reward, step.done, step.success) == (0.0, True, False)


def test_the_oracle_always_scores_one_and_a_random_player_does_not():
    rng = random.Random(0)
    oracle = [play(env := make(seed), env.oracle)[0] for seed in range(200)]
    chance = [play(env := make(seed), lambda m, e=env: e.random_policy(m, rng))[0] for seed in range(200)]
    assert oracle == [1.0] * 200
    assert 0.05 < sum(chance) / 200 < 0.6


def test_the_same_seed_gives_the_same_game_and_the_splits_share_no_seed():
    assert make(7).reset() == make(7).reset()
    train = {t.seed for t in islice(Gridworld.tasks("train", "gridworld"), 500)}
    heldout = {t.seed for t in islice(Gridworld.tasks("heldout", "gridworld"), 500)}
    assert len(train) == len(heldout) == 500
    assert not train & heldout


@pytest.mark.parametrize("size", [1, 0, 65])
def test_a_size_outside_the_bounds_is_refused_with_its_value(size):
    with pytest.raises(ValueError, match=f"size: must be from 2 to 64, got {size}"):
        make(size=size)


def test_no_turns_at_all_are_refused():
    with pytest.raises(ValueError, match="max_turns: must be at least 1, got 0"):
        make(max_turns=0)
