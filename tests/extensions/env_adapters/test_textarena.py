"""TextArena games, alone and against scripted players."""

import random
import threading

import numpy as np
import pytest

from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError, EnvironmentFailure
from asyncrl.extensions.env_adapters.own_random import OwnRandom
from asyncrl.extensions.env_adapters.textarena import TextArena, listed
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.packages import needs

needs("textarena")


def make(seed=0, **config):
    return TextArena(Task("t", "textarena", seed), **config)


def lowest(shown, rng):
    """A player that takes the lowest free square."""
    return listed(shown.rsplit("Available Moves:", 1)[1].split(",")[0], rng)


LOWEST = f"{__name__}:lowest"


@pytest.mark.parametrize("config", [{}, {"id": "2048-v0-easy", "players": 1}])
def test_a_game_against_listed_moves_and_one_alone_pass_every_check(config):
    assert [f for f in check_env("textarena", config, num_tasks=8) if not f.ok] == []


def test_tic_tac_toe_is_won_from_the_first_seat_and_the_opponents_moves_are_told():
    env = make(player=0, opponent=LOWEST)
    opening = env.reset()[0]["content"]
    assert "You are Player 0 in Tic Tac Toe" in opening and "'[8]'" in opening
    first = env.step(Action("4"))
    assert (
        "Player 1: [0]" in first.messages[0]["content"] and "Player 0: " not in first.messages[0]["content"]
    )
    env.step(Action("I take [3]"))
    won = env.step(Action("[5]"))
    assert (won.done, won.reward, won.success, won.truncated) == (True, 1.0, True, False)


def test_from_the_second_seat_the_other_player_has_moved_already():
    env = make(player=1, opponent=LOWEST)
    assert "Player 0: [0]" in env.reset()[0]["content"]
    steps = [env.step(Action(move)) for move in ("[1]", "[4]", "[7]")]
    assert [(s.done, s.reward) for s in steps] == [(False, 0.0), (False, 0.0), (True, 1.0)]
    assert [make(seed).player for seed in range(6)] == [0, 0, 1, 1, 0, 0]


def test_the_opponents_win_is_a_loss():
    env = make(player=0, opponent=LOWEST)
    env.reset()
    steps = [env.step(Action(move)) for move in ("[8]", "[4]", "[5]")]
    assert (steps[-1].reward, steps[-1].success, steps[-1].done) == (-1.0, False, True)


def test_the_policy_plays_both_seats_and_each_sees_the_others_moves_and_earns_its_own_reward():
    env = make(opponent="policy")
    assert "You are Player 0" in env.reset()[0]["content"]
    steps = [env.step(Action(move)) for move in ("[4]", "[0]", "[3]", "[1]", "[5]")]
    assert [s.agent for s in steps[:-1]] == ["second", "", "second", ""]
    opening = steps[0].messages[0]["content"]
    assert "You are Player 1" in opening and "Player 0: [4]" in opening
    assert "Player 1: [0]" in steps[1].messages[0]["content"]
    end = steps[-1]
    assert (end.done, end.reward, end.rewards, end.success) == (True, 1.0, {"second": -1.0}, None)


def test_the_second_seats_invalid_moves_are_told_to_it_and_lose_its_game():
    env = make(opponent="policy")
    env.reset()
    opened, told, lost = (env.step(Action(move)) for move in ("[4]", "nowhere", "nowhere"))
    assert (opened.agent, told.agent) == ("second", "second")
    assert "attempted an invalid move" in told.messages[0]["content"]
    assert (lost.reward, lost.rewards, lost.components) == (-1.0, {"": 1.0}, {"invalid": 1.0})


def test_held_out_tasks_may_have_another_opponent():
    config = {"opponent": "policy", "heldout_opponent": LOWEST}
    env = TextArena(Task("t", "textarena", 1, "heldout"), player=0, **config)
    env.reset()
    assert (env.both, env.step(Action("[4]")).agent) == (False, None)


def test_an_invalid_move_is_told_once_and_then_loses():
    env = make(player=0, opponent=LOWEST)
    env.reset()
    told = env.step(Action("nowhere"))
    assert not told.done and "attempted an invalid move" in told.messages[0]["content"]
    lost = env.step(Action("nowhere"))
    assert (lost.reward, lost.components["invalid"]) == (-1.0, 1.0)


def test_a_number_is_found_by_halving_alone():
    env = make(2, id="GuessTheNumber-v0", players=1)
    env.reset()
    low, high = 1, 20
    for _ in range(5):
        guess = (low + high) // 2
        step = env.step(Action(str(guess)))
        if step.done:
            break
        low, high = (low, guess - 1) if "lower" in step.messages[0]["content"] else (guess + 1, high)
    assert (step.reward, step.success) == (1.0, True)


def test_the_turns_of_the_recipe_end_a_game_as_truncated():
    env = make(id="2048-v0", players=1, max_turns=1)
    env.reset()
    end = env.step(Action("up"))
    assert (end.done, end.truncated, end.reward, end.success) == (True, True, 0.0, False)


def episode(seed, between=lambda: None):
    env = make(seed, id="2048-v0", players=1)
    shown = [env.reset()[0]["content"]]
    for move in ("up", "left", "down", "right") * 3:
        between()
        shown += [m["content"] for m in env.step(Action(move)).messages]
    return shown


def test_games_that_draw_from_the_global_generator_do_not_disturb_each_other_or_anybody():
    alone = [episode(seed) for seed in (1, 2)]
    random.seed(7)
    assert [episode(1, random.random), episode(2, random.random)] == alone
    drawn = random.random()
    random.seed(7)
    for _ in range(24):
        random.random()
    assert random.random() == drawn

    together = {}
    threads = [threading.Thread(target=lambda s=s: together.update({s: episode(s)})) for s in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[1], together[2]] == alone


def test_a_private_generator_goes_on_where_it_stopped_and_numpys_too():
    mine = OwnRandom(5)
    with mine:
        drawn = [random.random(), np.random.random()]
    outside = random.random()
    with mine:
        drawn += [random.random(), np.random.random()]
    whole = OwnRandom(5)
    with whole:
        assert drawn == [f() for f in (random.random, np.random.random) * 2]
    assert outside not in drawn


def test_an_opponent_without_listed_moves_is_refused():
    with pytest.raises(EnvironmentFailure, match="'listed' finds no move"):
        listed("what now?", random.Random(0))


@pytest.mark.parametrize(
    ("config", "error", "problem"),
    [
        ({"id": "TicTacToe"}, ValueError, "id: unknown game 'TicTacToe'"),
        ({"player": 2}, ValueError, "player: must be from 0 to 1"),
        ({"opponent": "policy", "players": 3}, ValueError, "players: must be 2 for opponent='policy'"),
        ({"opponent": "human"}, ConfigError, "opponent: must be an import path"),
    ],
)
def test_wrong_settings_are_named(config, error, problem):
    with pytest.raises(error, match=problem):
        make(**config)


def test_a_wrong_number_of_players_is_named():
    with pytest.raises(EnvironmentFailure, match="players: the game refuses 1"):
        make(players=1, player=0).reset()
