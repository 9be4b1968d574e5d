"""Nim: whose turn it is, what a player sees, who wins, and the scripted players of held-out tasks."""

import random
from itertools import islice

import pytest

from asyncrl.env.protocol import MAIN_AGENT, Action
from asyncrl.envs.nim.env import SECOND, Nim
from asyncrl.envs.nim.heaps import Heaps, make_heaps
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task


def make(left, most=3, split="train", **config):
    env = Nim(Task("t", "nim", 0, split), **config)
    env.heaps = env.start = Heaps(left, most)
    env.reset()
    return env


def play(env, *moves):
    return [env.step(Action(move)) for move in moves]


def test_the_policy_plays_both_seats_by_turns_and_the_last_to_take_wins():
    env = make((5,))
    opened, back, end = play(env, "a 3", "a 1", "a 1")
    assert (opened.agent, [m["role"] for m in opened.messages]) == (SECOND, ["system", "user"])
    assert opened.messages[-1]["content"] == "a 2"
    assert (back.agent, back.messages) == (MAIN_AGENT, [{"role": "user", "content": "a 1"}])
    assert (end.done, end.reward, end.rewards, end.success) == (True, 1.0, {SECOND: -1.0}, None)


def test_the_second_players_win_is_the_main_agents_loss():
    end = play(make((5,)), "a 3", "a 2")[-1]
    assert (end.reward, end.rewards) == (1.0, {MAIN_AGENT: -1.0})


@pytest.mark.parametrize("wrong", ["a 4", "b 1", "a 0", "take some", "", "a 1 a 1"])
def test_an_illegal_move_loses(wrong):
    first = play(make((5,)), wrong)[-1]
    assert (first.done, first.reward, first.rewards, first.components) == (True, -1.0, {}, {"illegal": 1.0})
    second = play(make((5,)), "a 1", wrong)[-1]
    assert (second.reward, second.rewards) == (-1.0, {MAIN_AGENT: 1.0})


def test_the_perfect_player_leaves_multiples_of_four_and_equal_heaps():
    rng = random.Random(0)
    assert Heaps((7,), 3).best(rng) == (0, 3)
    assert Heaps((5, 3), 7).best(rng) == (0, 2)
    assert not Heaps((8,), 3).won() and not Heaps((4, 4), 7).won() and not Heaps((1, 2, 3), 7).won()
    assert all(make_heaps(level, rng).won() for level in (1, 2, 3) for _ in range(50))


def test_on_held_out_tasks_the_second_seat_is_scripted_and_one_mistake_loses_to_it():
    env = make((5,), split="heldout")
    (answered,) = play(env, "a 1")
    assert answered.agent is None and env.heaps.left < (4,)
    won = make((5,), split="heldout")
    step = play(won, "a 1")[0]
    while not step.done:
        step = play(won, f"a {won.heaps.left[0] % 4}")[0]
    assert (step.reward, step.success) == (1.0, True)
    lost = play(make((6,), split="heldout"), "a 1", "a 1")
    assert (lost[-1].done, lost[-1].reward, lost[-1].success) == (False, 0.0, None) or lost[-1].reward == -1.0


def test_the_environment_passes_its_checks():
    findings = check_env("nim", {"level": 2}, num_tasks=20)
    assert [finding for finding in findings if not finding.ok] == []


def test_the_players_of_both_splits_can_be_chosen_and_wrong_ones_are_refused():
    heldout = next(iter(islice(Nim.tasks("heldout", "nim"), 1)))
    assert Nim(heldout).opponent == "optimal"
    assert Nim(heldout, heldout_opponent="random").opponent == "random"
    with pytest.raises(ValueError, match="opponent: must be one of policy, random, optimal, got 'human'"):
        Nim(heldout, opponent="human")
