"""TextWorld games, made and compiled here."""

import shutil
from pathlib import Path

import pytest

from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.textworld import TextWorld
from asyncrl.extensions.env_adapters.textworld_games import GameSize, game_file
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.packages import needs

needs("textworld")

SMALL = {"rooms": 2, "objects": 2, "quest_length": 2}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("games"))


def make(cache, seed=0, **config):
    return TextWorld(Task("t", "textworld", seed), cache=cache, **(SMALL | config))


def solve(env, messages):
    steps = []
    while not steps or not steps[-1].done:
        steps.append(env.step(Action(env.oracle(messages)["content"])))
    return steps


@pytest.mark.slow
def test_made_games_pass_every_check(cache):
    assert [f for f in check_env("textworld", SMALL | {"cache": cache}, 2) if not f.ok] == []


def test_a_made_game_is_won_by_its_own_solution(cache):
    env = make(cache)
    messages = env.reset()
    text = messages[0]["content"]
    assert "-= " in text and "\n\nCommands: " in text and "$$" not in text
    steps = solve(env, messages)
    assert len(steps) == 2 and env.max_turns == 8
    assert (sum(s.reward for s in steps), steps[-1].success, steps[-1].truncated) == (1.0, True, False)
    env.close()


def test_what_the_game_says_comes_without_its_prompt_and_a_place_has_one_id(cache):
    env = make(cache, commands=False)
    env.reset()
    first, second = env.step(Action("look")), env.step(Action("  INVENTORY "))
    assert first.messages[0]["content"].startswith("-= ") and ">" not in first.messages[0]["content"]
    assert "carrying" in second.messages[0]["content"]
    assert first.observation_id == second.observation_id
    env.close()


@pytest.mark.parametrize("command", ["save", "look. save", "look then quit", "", "x" * 101, "Restore!"])
def test_commands_to_the_interpreter_are_refused_and_cost_a_turn(cache, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = make(cache, max_turns=2)
    env.reset()
    first, second = env.step(Action(command)), env.step(Action(command))
    assert (
        first.messages[0]["content"].startswith("That is not a command")
        and first.components["invalid"] == 1.0
    )
    assert (second.done, second.truncated, second.success) == (True, True, False)
    assert list(tmp_path.iterdir()) == []
    env.close()


def test_a_game_is_made_once(cache):
    size = GameSize(**SMALL)
    path = game_file(size, 0, Path(cache))
    made = path.stat().st_mtime_ns
    assert game_file(size, 0, Path(cache)).stat().st_mtime_ns == made
    assert sorted(p.suffix for p in Path(cache).iterdir() if p.stem == path.stem) == [".json", ".z8"]
    assert not [p for p in Path(cache).iterdir() if p.is_dir()]


def test_games_of_ones_own_are_tasks(cache, tmp_path):
    path = game_file(GameSize(**SMALL), 0, Path(cache))
    for name in ("a", "b", "c"):
        for suffix in (".z8", ".json"):
            shutil.copy(path.with_suffix(suffix), tmp_path / f"{name}{suffix}")
    tasks = list(TextWorld.tasks("train", "textworld", games=str(tmp_path)))
    assert [t.id for t in tasks] == ["train-a", "train-c"]
    assert [t.id for t in TextWorld.tasks("heldout", "textworld", games=str(tmp_path))] == ["heldout-b"]
    env = TextWorld(tasks[1], games=str(tmp_path))
    assert solve(env, env.reset())[-1].success
    env.close()


def test_wrong_settings_are_named(cache, tmp_path):
    with pytest.raises(ValueError, match="rooms: must be an integer from 1 to 20, got 0"):
        make(cache, rooms=0)
    with pytest.raises(ValueError, match="quest_length: must be an integer from 1 to 10, got 11"):
        make(cache, quest_length=11)
    with pytest.raises(ConfigError, match=r"holds no \.z8 or \.ulx file"):
        next(TextWorld.tasks("train", "textworld", games=str(tmp_path)))
    with pytest.raises(ValueError, match="names no game file"):
        make(cache, games=str(tmp_path))
