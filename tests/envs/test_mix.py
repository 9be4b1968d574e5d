"""Several environments in one run: shares, splits, delegation, refusals."""

import asyncio
import random
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from asyncrl.config import load_config
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action
from asyncrl.env.registry import load_env
from asyncrl.envs.mix.env import Mix, read_parts
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.extensions.hints.strategy import hint
from asyncrl.tasks.plans import plan_tasks
from asyncrl.types import Task
from tests.scripts import load_script

PARTS = {
    "gridworld": {"weight": 2},
    "easy": {"env": "calculator", "config": {"limit": 5}},
    "textgame": {"weight": 0.5, "config": {"game": "adventure"}},
}


def tasks(count, split="train", parts=PARTS):
    return list(islice(Mix.tasks(split, "mix", parts=parts), count))


def test_every_part_is_within_one_task_of_its_share_at_any_time():
    dealt = Counter()
    for number, task in enumerate(tasks(350), start=1):
        dealt[task.data["part"]] += 1
        for part, share in (("gridworld", 4 / 7), ("easy", 2 / 7), ("textgame", 1 / 7)):
            assert abs(dealt[part] - share * number) <= 1
    assert dealt == {"gridworld": 200, "easy": 100, "textgame": 50}


def test_the_tasks_are_the_parts_own_under_ids_of_their_own():
    of_part = [t for t in tasks(70) if t.data["part"] == "gridworld"]
    own = list(islice(load_env("gridworld").tasks("train", "gridworld"), len(of_part)))
    assert [(t.id, t.seed, t.data["data"]) for t in of_part] == [
        (f"gridworld-{t.id}", t.seed, t.data) for t in own
    ]


def test_a_part_that_has_no_more_tasks_leaves_its_turns_to_the_others(monkeypatch):
    calculator = load_env("calculator")
    whole = calculator.tasks
    monkeypatch.setattr(calculator, "tasks", lambda *a, **k: islice(whole(*a, **k), 3))
    dealt = Counter(t.data["part"] for t in tasks(100))
    assert dealt["easy"] == 3
    assert sum(dealt.values()) == 100


def test_the_limit_of_an_environment_holds_for_the_parts_that_play_it():
    parts = {"calculator": {}, "easy": {"env": "calculator", "config": {"limit": 5}}, "gridworld": {}}
    by_part = {}
    for task in tasks(9, parts=parts):
        by_part.setdefault(task.data["part"], task)

    async def scenario():
        host = EnvHost(limits={"calculator": 1})
        await host.open(by_part["easy"], {"parts": parts})
        with pytest.raises(UnavailableError, match="all 1 sessions of environment 'calculator'"):
            await host.open(by_part["calculator"], {"parts": parts})
        await host.open(by_part["gridworld"], {"parts": parts})
        held = dict(host.held)
        await host.close_all()
        return held, dict(host.held)

    assert asyncio.run(scenario()) == ({"mix": 2, "calculator": 1, "gridworld": 1}, {})


def test_hints_of_a_part_reach_the_rollout(monkeypatch):
    gridworld = load_env("gridworld")
    hinted = [Task("a", "gridworld", 1, data={"hint": ["north"]}), Task("b", "gridworld", 2)]
    monkeypatch.setattr(gridworld, "tasks", lambda *args, **config: iter(hinted))
    with_hint, without = Mix.tasks("train", "mix", parts={"gridworld": {}})
    prefix = hint(with_hint, 1, lambda message: np.frombuffer(message["content"].encode(), np.uint8))
    assert [bytes(turn) for turn in prefix.turns] == [b"north"]
    assert hint(without, 1, None) is None
    assert Mix(with_hint, parts={"gridworld": {}}).env.task.data == hinted[0].data


def test_an_episode_is_the_parts_own():
    for task in tasks(14):
        mixed = Mix(task, parts=PARTS)
        name, _, config = read_parts(PARTS)[task.data["part"]]
        alone = load_env(name)(mixed.env.task, **config)
        assert mixed.reset() == alone.reset()
        assert (mixed.tools, mixed.max_turns, mixed.blocking) == (
            alone.tools,
            alone.max_turns,
            alone.blocking,
        )
        assert mixed.step(Action("north")) == alone.step(Action("north"))


def test_the_scripted_policies_are_the_parts_own():
    for task in tasks(14):
        env = Mix(task, parts=PARTS)
        opening = env.reset()
        assert env.oracle(opening) == env.env.oracle(opening)
        choice = [player.random_policy(opening, random.Random(1)) for player in (env, env.env)]
        assert choice[0] == choice[1]


def test_a_part_with_async_methods_is_awaited():
    task = tasks(1, parts={"countdown": {}})[0]

    async def scenario():
        env = Mix(task, parts={"countdown": {}})
        opened = env.reset()
        messages = await opened if asyncio.iscoroutine(opened) else opened
        closed = env.close()
        if closed is not None:
            await closed
        return messages

    assert asyncio.run(scenario())[-1]["role"] == "user"


def test_the_splits_share_nothing():
    seen = [{(t.data["part"], t.seed) for t in tasks(100, split)} for split in ("train", "heldout")]
    assert not seen[0] & seen[1]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (None, "must name at least one part"),
        ({}, "must name at least one part"),
        ({"gridworld": 2}, r"parts\.gridworld: must be a table of env, weight, config, got 2"),
        ({"gridworld": {"share": 2}}, r"parts\.gridworld: must be a table"),
        ({"gridworld": {"weight": 0}}, r"parts\.gridworld\.weight: must be a number above 0, got 0"),
        ({"agent": {}}, "'agent' has its episodes played by programs"),
        ({"gridword": {}}, "unknown environment 'gridword'; did you mean 'gridworld'"),
        ({"gridworld": {"config": 3}}, r"parts\.gridworld\.config: must be a table, got 3"),
    ],
)
def test_parts_that_are_wrong_are_named(parts, words):
    with pytest.raises(ConfigError, match=words):
        next(Mix.tasks("train", "mix", parts=parts))


def test_the_share_benchmark_knows_the_part_of_a_planned_task(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")
    planned = list(islice(plan_tasks(load_config("mixed_grpo"))._tasks, 20))
    part_of = load_script("bench/bench_mix").part_of
    assert [part_of(task.id) for task in planned] == [task.data["part"] for task in planned]
