"""Gymnasium environments played by words."""

import numpy as np
import pytest

from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_adapters.gym_text import minigrid_text
from asyncrl.extensions.env_adapters.gymnasium import Gymnasium
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")


def make(seed=0, **config):
    return Gymnasium(Task("t", "gymnasium", seed), **config)


def play(env, *words):
    return [env.step(Action(word)) for word in words]


def test_the_adapter_passes_every_check_by_the_bot_of_babyai(capsys):
    assert [f for f in check_env("gymnasium", num_tasks=20) if not f.ok] == []
    assert "rejected" not in capsys.readouterr().out


def test_a_view_is_told_from_where_the_agent_stands():
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[3, 6] = (5, 4, 0)
    image[2, 5] = (6, 0, 0)
    image[5, 6] = (4, 2, 2)
    image[3, 3] = image[6, 6] = (2, 5, 0)
    assert minigrid_text(None, {"image": image, "mission": "open the door"}).splitlines() == [
        "open the door",
        "you carry a yellow key",
        "locked blue door: 2 right",
        "red ball: 1 ahead, 1 left",
        "wall: 3 ahead",
        "wall: 3 right",
    ]


def test_frozen_lake_is_won_in_six_steps_and_lost_in_a_hole():
    config = {"id": "FrozenLake-v1", "make": {"is_slippery": False}}
    won = play(make(**config), "right", "right", "down", "down", "down", "Right ")
    assert [s.reward for s in won] == [0, 0, 0, 0, 0, 1]
    assert won[-1].success and not won[-1].truncated
    assert won[0].messages[0]["content"].splitlines()[1] == "S[F]FF"
    lost = play(make(**config), "down", "right")
    assert (lost[-1].reward, lost[-1].done, lost[-1].success) == (0.0, True, False)


def test_an_unknown_word_costs_a_turn_and_moves_nothing():
    env = make(id="FrozenLake-v1", max_turns=2)
    first, second = play(env, "jump", "jump")
    assert first.messages[0]["content"].startswith("not an action; there are left, down, right, up\n[S]FFF")
    assert (first.components["invalid"], first.done) == (1.0, False)
    assert (second.done, second.truncated, second.success) == (True, True, False)


def test_equal_states_have_equal_ids_and_others_do_not():
    env = make(id="BabyAI-GoToRedBallGrey-v0", seed=3)
    left, back, on = play(env, "left", "right", "left")
    assert left.observation_id == on.observation_id != back.observation_id


def test_the_environments_own_reward_can_be_taken_as_it_is():
    steps = play(make(id="CliffWalking-v1", reward="env"), "up", "down", "right")
    assert [s.reward for s in steps] == [-1, -1, -100]


def test_actions_and_text_can_be_named_by_the_user():
    env = make(id="CartPole-v1", actions=["push left", "push right"], text=f"{__name__}:two_words")
    assert env.reset()[0]["content"] == "Answer with one action: push left, push right.\npole moves"
    assert env.step(Action("Push  right")).components["invalid"] == 0.0


def two_words(env, observation):
    return "pole moves"


def test_the_starts_of_a_small_grid_are_divided_between_the_splits():
    keys = [
        {make(seed, id="BabyAI-GoToRedBallNoDists-v0").problem_key() for seed in range(i, 300, 2)}
        for i in (0, 1)
    ]
    assert min(map(len, keys)) > 100 and not keys[0] & keys[1]


class Coin(gymnasium.Env):
    """Heads by an even seed; guess it."""

    observation_space = gymnasium.spaces.Discrete(1)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.side = seed % 2
        return 0, {}

    def step(self, action):
        return 0, float(action == self.side), True, False, {}


def test_a_module_that_registers_environments_is_imported():
    gymnasium.register("Coin-v0", entry_point=Coin)
    env = make(4, id=f"{__name__}:Coin-v0", actions=["heads", "tails"])
    assert env.step(Action("heads")).success


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"id": "FrozenLake"}, "id: unknown environment 'FrozenLake'"),
        ({"id": "no_such_module:X-v0"}, "id: 'no_such_module' cannot be imported"),
        ({"id": "Pendulum-v1"}, "only Discrete from 0 is played"),
        ({"id": "CartPole-v1", "actions": ["left"]}, "actions: must be 2 different names"),
        ({"reward": "return"}, "reward: must be one of success, env"),
    ],
)
def test_wrong_settings_are_named(config, problem):
    with pytest.raises((ValueError, ConfigError), match=problem):
        make(**config)
