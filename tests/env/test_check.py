"""`asyncrl env` lists, checks and plays; the check fails on environments that deserve it."""

import random

import pytest

from asyncrl.cli import main
from asyncrl.env.check import check_env
from asyncrl.env.protocol import Env, Step

HERE = __name__


class Leaky(Env):
    """Its oracle loses, its problems change, and its sessions share a counter."""

    blocking = False
    max_turns = 2
    shared = 0

    def reset(self):
        return [{"role": "user", "content": str(random.random())}]

    def step(self, action):
        Leaky.shared += 1
        return Step(reward=(Leaky.shared % 7) / 10, done=True)

    def oracle(self, messages):
        return {"role": "assistant", "content": "x"}

    random_policy = lambda self, messages, rng: self.oracle(messages)  # noqa: E731


class Telltale(Env):
    """Shows its answer in the first observation, and has the same problems in both splits."""

    blocking = False
    levels = (1, 2)

    def __init__(self, task, level=1):
        super().__init__(task)
        self.level = level

    def reset(self):
        return [{"role": "user", "content": "What is the password? (It is swordfish.)"}]

    def step(self, action):
        return Step(reward=float(action.content == "swordfish" and self.level == 1), done=True)

    def oracle(self, messages):
        return {"role": "assistant", "content": "swordfish"}

    def random_policy(self, messages, rng):
        return {"role": "assistant", "content": "herring"}

    def problem_key(self):
        return "password"

    def secrets(self):
        return ("swordfish",)


@pytest.mark.parametrize("name", ["gridworld", "calculator"])
def test_our_environments_pass_every_check(name):
    assert [f for f in check_env(name) if not f.ok] == []


def test_a_bad_environment_fails_the_checks_it_should():
    failed = {f.name for f in check_env(f"{HERE}:Leaky") if not f.ok}
    assert {"a seed gives one problem", "oracle scores", "sessions do not touch each other"} <= failed


def test_a_shown_secret_equal_problems_and_a_level_the_oracle_fails_are_found():
    findings = {f.name: f for f in check_env(f"{HERE}:Telltale", num_tasks=5)}
    assert [name for name, f in findings.items() if not f.ok] == [
        "splits are disjoint",
        "oracle scores",
        "observations keep the answer secret",
    ]
    assert "such as 'swordfish'" in findings["observations keep the answer secret"].seen
    assert "0.000 on level 2" in findings["oracle scores"].seen


def test_the_command_lists_checks_and_plays(capsys, monkeypatch):
    assert main(["env", "list"]) == 0
    assert "gridworld" in capsys.readouterr().out
    assert main(["env", "check", "gridworld"]) == 0
    assert "oracle scores: mean reward 1.000" in capsys.readouterr().out
    assert main(["env", "check", f"{HERE}:Leaky"]) == 1
    answers = iter(["north"] * 20)
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    assert main(["env", "play", "gridworld", "--seed", "3"]) == 0
    assert "done: reward" in capsys.readouterr().out
