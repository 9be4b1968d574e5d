"""Text games: rules, turn limits, an expert that always wins."""

import random

import pytest

from asyncrl.env.protocol import Action
from asyncrl.envs.textgame.adventure import Adventure
from asyncrl.envs.textgame.env import GAMES, TextGame
from asyncrl.envs.textgame.mastermind import Mastermind, compare
from asyncrl.envs.textgame.twenty import TRUE_OF, TwentyQuestions
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task


def play(seed, game, level, random_seed=None):
    env = TextGame(Task("t", "textgame", seed), game, level)
    messages, rng = env.reset(), random.Random(random_seed)
    for _ in range(env.max_turns):
        message = env.oracle(messages) if random_seed is None else env.random_policy(messages, rng)
        step = env.step(Action(message["content"]))
        if step.done:
            return step
    raise AssertionError("the last turn must end the game")


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("game", list(GAMES))
def test_the_expert_wins_and_a_random_player_mostly_does_not(game, level):
    assert {play(seed, game, level).reward for seed in range(60)} == {1.0}
    chance = sum(play(seed, game, level, random_seed=seed).reward for seed in range(60)) / 60
    assert 0 <= chance < 0.6


def test_the_first_consistent_guess_finds_every_code_in_time():
    for level in (1, 2, 3):
        codes = Mastermind(0, level).candidates
        for secret in codes:
            game = Mastermind(0, level)
            game.secret = secret
            turns = 0
            while not (reply := game.play(game.expert())).over:
                turns += 1
            assert reply.won and turns < game.max_turns


@pytest.mark.parametrize(
    ("secret", "guess", "expected"),
    [
        ((1, 2), (1, 2), (2, 0)),
        ((1, 2), (2, 1), (0, 2)),
        ((1, 1, 2), (2, 1, 1), (1, 2)),
        ((3, 3), (3, 1), (1, 0)),
    ],
)
def test_right_and_misplaced_digits_are_counted_once_each(secret, guess, expected):
    assert compare(secret, guess) == expected


def test_a_door_opens_only_for_its_key():
    game = next(g for g in (Adventure(seed, 1) for seed in range(50)) if (0, 1) in g.doors and g.things)
    way = next(way for way, room in game.exits[0].items() if room == 1)
    assert f"{way} ({game.doors[0, 1]} door)" in game.look()
    assert not game.play(f"go {way}").valid
    game.state = (0, frozenset({f"{game.doors[0, 1]} key"}))
    assert game.play(f"go {way}").valid
    assert game.state[0] == 1


def test_questions_are_answered_by_the_trait_table_and_a_wrong_name_costs_a_turn():
    game = TwentyQuestions(3, 2)
    for trait, things in TRUE_OF.items():
        assert game.play(f"is it {trait}?").text == ("yes" if game.secret in things else "no")
    wrong = next(thing for thing in game.things if thing != game.secret)
    assert game.play(wrong) == game.play(f"{wrong}.")
    assert game.play(game.secret).won


def test_the_secret_is_not_in_what_a_code_breaker_sees():
    env = TextGame(Task("t", "textgame", 4), "mastermind", 3)
    opening = env.reset()[0]["content"]
    assert "".join(map(str, env.game.secret)) not in opening


def test_an_unknown_command_costs_the_turn_and_the_last_turn_ends_the_game():
    env = TextGame(Task("t", "textgame", 1), "mastermind", 1)
    for _ in range(env.max_turns - 1):
        step = env.step(Action("dance"))
        assert (step.done, step.components["invalid"], step.messages[0]["content"]) == (
            False,
            1.0,
            "not a code",
        )
    assert env.step(Action("dance")).done


@pytest.mark.parametrize(
    ("config", "message"),
    [({"game": "go"}, "game: must be one of mixed, adventure"), ({"level": 4}, "level: must be")],
)
def test_a_wrong_configuration_is_refused_with_what_is_allowed(config, message):
    with pytest.raises(ValueError, match=message):
        TextGame(Task("t", "textgame", 0), **config)


def test_it_passes_the_environment_check():
    assert [f for f in check_env("textgame") if not f.ok] == []
