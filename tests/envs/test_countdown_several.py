"""Several countdown problems in one task."""

import pytest

from asyncrl.env.protocol import Action
from asyncrl.envs.countdown.env import Problem
from asyncrl.envs.countdown.several import SeveralCountdowns
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task


def sums(seed=0, **config):
    return SeveralCountdowns(Task("t", "countdown_several", seed), **config)


@pytest.fixture
def env():
    made = sums()
    made.problems = [Problem((3, 9), 6, "9 - 3"), Problem((2, 5), 10, "2 * 5"), Problem((8, 4), 2, "8 / 4")]
    return made


def test_the_problems_are_numbered(env):
    assert env.reset()[1]["content"] == "1: 3 9 make 6\n2: 2 5 make 10\n3: 8 4 make 2"


@pytest.mark.parametrize(
    ("answer", "reward", "success"),
    [
        ("9 - 3; 5 * 2; 8 / 4", 1.0, True),
        ("9 + 3 = 12\n9 - 3 = 6\n9 - 3; 5 * 2; 8 / 4", 1.0, True),
        ("9 - 3; 5 + 2; 8 / 4", 2 / 3, False),
        ("9 - 3; 5 * 2", 2 / 3, False),
        ("5 * 2; 9 - 3; 8 / 4", 1 / 3, False),
        ("9 - 3; 5 * 2; 8 / 4; 1", 1.0, False),
        ("9 - 3; 5 * 2; 8 / 4\nthat is all", 0.0, False),
        ("6; 10; 2", 0.0, False),
        ("", 0.0, False),
    ],
)
def test_the_last_line_is_the_answer_and_the_reward_its_share_of_right_expressions(
    env, answer, reward, success
):
    step = env.step(Action(answer))
    assert (step.reward, step.success, step.done) == (pytest.approx(reward), success, True)
    assert step.components == {"solved": pytest.approx(reward)}


def test_an_expert_tries_one_operation_after_another(env):
    parts = env.parts()
    assert parts.prompts == ("1", "2", "3")
    assert parts.works[0] == "9 + 3 = 12\n9 - 3 = 6"
    assert parts.works[2] == "8 + 4 = 12\n8 - 4 = 4\n8 * 4 = 32\n8 / 4 = 2"
    assert parts.answer == "9 - 3; 5 * 2; 8 / 4"
    assert env.step(Action(env.oracle([])["content"])).success is True


def test_the_environment_keeps_its_contract():
    assert [f for f in check_env("countdown_several") if not f.ok] == []


@pytest.mark.parametrize(("config", "key"), [({"problems": 9}, "problems"), ({"largest": 1}, "largest")])
def test_wrong_settings_are_refused(config, key):
    with pytest.raises(ValueError, match=key):
        sums(**config)
