"""Navigation by sight: the text is always the same, and the picture tells everything."""

import random

import numpy as np
import pytest

from asyncrl.env.protocol import Action
from asyncrl.envs.gridworld.env import MOVES
from asyncrl.envs.visual_gridworld.env import CELL, GOAL, GROUND, PLAYER, VisualGridworld
from asyncrl.images import decode_image, without_images
from asyncrl.types import Task
from tests.envs.test_gridworld import play


def make(seed=0, **config):
    return VisualGridworld(Task("t", "visual_gridworld", seed), **config)


def seen(message):
    """The text and the picture [H,W,3] of an observation."""
    (text,) = [part["text"] for part in message["content"] if part["type"] == "text"]
    _, (data,) = without_images([message])
    return text, np.asarray(decode_image(data))


def cell_of(picture, color, size):
    """Column and row from below of the cell whose middle has a color."""
    middles = picture[CELL // 2 :: CELL, CELL // 2 :: CELL]
    ((row, column),) = np.argwhere((middles == color).all(-1))
    return int(column), size - 1 - int(row)


def test_the_picture_shows_player_and_goal_and_the_text_says_nothing():
    texts = set()
    for seed in range(40):
        env = make(seed)
        text, picture = seen(env.reset()[0])
        texts.add(text)
        assert picture.shape == (4 * CELL, 4 * CELL, 3)
        assert cell_of(picture, PLAYER, 4) == (env.x, env.y)
        assert cell_of(picture, GOAL, 4) == (env.goal_x, env.goal_y)
        assert (picture == GROUND).all(-1).any()
    assert texts == {"go"}


def test_a_move_is_seen_and_another_place_is_another_state():
    env = make()
    env.x, env.y, env.goal_x, env.goal_y = 1, 1, 3, 3
    before = seen(env.reset()[0])[1]
    step = env.step(Action("north"))
    after = seen(step.messages[0])[1]
    assert cell_of(before, PLAYER, 4) == (1, 1) and cell_of(after, PLAYER, 4) == (1, 2)
    assert step.matches and step.observation_id == "1,2"


def test_the_expert_always_arrives_and_a_player_who_does_not_look_seldom_does():
    rng = random.Random(0)
    expert = [play(env := make(seed), env.oracle)[0] for seed in range(100)]
    # The best that can be done without looking is to walk over the grid.
    blind = [
        play(make(seed), lambda m: {"role": "assistant", "content": rng.choice(list(MOVES))})[0]
        for seed in range(200)
    ]
    assert expert == [1.0] * 100
    assert sum(blind) / 200 < 0.7


def test_a_blank_grid_and_that_of_other_places_say_nothing_of_the_players():
    blank = {make(seed, shown="blank").picture().tobytes() for seed in range(20)}
    assert len(blank) == 1
    told = []
    for seed in range(200):
        env = make(seed, shown="other")
        picture = seen(env.reset()[0])[1]
        shown = *cell_of(picture, PLAYER, 4), *cell_of(picture, GOAL, 4)
        assert shown[:2] != shown[2:]
        told.append(shown == (env.x, env.y, env.goal_x, env.goal_y))
        assert play(env, env.oracle)[0] == 1.0, "the task is the same"
    assert sum(told) <= 5
    assert make(3, shown="other").picture().tobytes() == make(3, shown="other").picture().tobytes()
    with pytest.raises(ValueError, match="shown: must be one of grid, blank, other, got 'nothing'"):
        make(shown="nothing")
