"""What an objective reads of an environment's steps is compared with what the environment says that it gives."""

from __future__ import annotations

import asyncio
import random
from itertools import islice

import pytest

from asyncrl.config import parse_config
from asyncrl.env.config_check import check_provided, provided
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Env, Step
from asyncrl.env.registry import load_env
from asyncrl.env.scripted import to_action
from asyncrl.errors import ConfigError
from asyncrl.launch.checks.check import check_answers, check_recipe, env_needs
from asyncrl.types import Task

CHEAP = ("calculator", "countdown", "countdown_several", "gridworld", "nim", "office", "support", "textgame")


def steps_of(name: str) -> list[Step]:
    """Play two training tasks with the random policy and return every step."""

    async def play(task: Task) -> list[Step]:
        host, found = EnvHost(), []
        session = await host.open(task, {})
        env, messages = session.env, list(session.messages)
        try:
            for turn in range(env.max_turns):
                message = env.random_policy(messages, random.Random(turn))
                step = await host.step(session.id, turn, to_action(message), 60.0)
                found.append(step)
                messages += [message, *step.messages]
                if step.done:
                    break
        finally:
            await host.close_all()
        return found

    tasks = islice(load_env(name).tasks("train", name), 2)
    return [step for task in tasks for step in asyncio.run(play(task))]


@pytest.mark.parametrize("name", CHEAP)
def test_steps_give_what_the_class_says_and_nothing_that_it_does_not(name):
    steps = steps_of(name)
    given = {"components"} if any(step.components for step in steps) else set()
    given |= {"matches"} if any(step.matches is not None for step in steps) else set()
    assert given == provided(name, {})


def test_a_mix_gives_what_all_of_its_parts_give():
    parts = {"parts": {"gridworld": {"weight": 1}, "countdown": {"weight": 1}}}
    assert provided("mix", parts) == {"components"}


class Silent(Env):
    """Says nothing of what its steps give."""


def recipe(preset: str, env: str):
    return parse_config(
        {"model": {"path": "sft"}, "env": {"name": env}, "algo": {"preset": preset}}, strict=False
    )


@pytest.mark.parametrize(("preset", "word"), [("gdpo", "components"), ("ui_s1", "matches")])
def test_an_objective_is_refused_for_an_environment_without_what_it_reads(preset, word):
    config = recipe(preset, "tests.env.test_provided:Silent")
    name = env_needs(config)[word]
    with pytest.raises(ConfigError, match=f"env.name: .*Silent' gives no {word} .*{name}"):
        check_recipe(config)


def test_an_objective_starts_where_the_environment_gives_what_it_reads():
    check_recipe(recipe("ui_s1", "gridworld"))
    check_provided("gridworld", {}, {"matches": "algo.advantage.name='ui_s1'"})


def test_igpo_is_refused_for_tasks_without_an_answer():
    config = recipe("igpo", "gridworld")
    with pytest.raises(ConfigError, match=r"'igpo' reads how likely the right answer is.*has None"):
        check_answers(config, Task(id="t", env="gridworld", seed=0))
    check_answers(config, Task(id="t", env="gridworld", seed=0, data={"answer": "3"}))
