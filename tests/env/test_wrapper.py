"""An environment around another one: whose tasks it has, and what it takes over."""

import asyncio
from itertools import islice

import pytest

from asyncrl.env.protocol import Env
from asyncrl.env.wrapper import Wrapper, then
from asyncrl.errors import ConfigError
from asyncrl.types import Task

HERE = __name__


class Opens(Env):
    """Knows its turns and tools only when it is opened."""

    max_turns = 1

    def __init__(self, task, size=1):
        super().__init__(task)
        self.size = size

    def reset(self):
        self.max_turns, self.tools = self.size, [{"type": "function"}]
        return [{"role": "user", "content": "go"}]

    def secrets(self):
        return ("gold",)


CONFIG = {"tasks": f"{HERE}:Opens", "task_config": {"size": 7}}


def test_what_the_other_environment_sets_when_it_is_opened_is_taken_over():
    env = Wrapper(Task("t", "around", 0), **CONFIG)
    assert (env.max_turns, env.tools) == (1, [])
    assert env.reset() == [{"role": "user", "content": "go"}]
    assert (env.max_turns, env.tools, env.secrets()) == (7, [{"type": "function"}], ("gold",))


def test_tasks_are_the_others_under_its_own_name():
    first, second = islice(Wrapper.tasks("heldout", "around", **CONFIG), 2)
    assert [(t.id, t.env, t.seed) for t in (first, second)] == [
        ("heldout-1", "around", 1),
        ("heldout-3", "around", 3),
    ]
    inner, config = Wrapper.inner_task(first, **CONFIG)
    assert (inner.env, inner.seed, config) == (f"{HERE}:Opens", 1, {"size": 7})
    assert list(Wrapper.inner(**CONFIG)) == [("task_config", f"{HERE}:Opens", {"size": 7})]


def test_one_that_names_no_other_is_refused():
    with pytest.raises(ConfigError, match=r"env\.config\.tasks: must name the environment that is played"):
        Wrapper(Task("t", "around", 0))
    with pytest.raises(
        ConfigError, match=r"env\.config\.tasks: unknown environment 'gridwrld'; did you mean"
    ):
        Wrapper(Task("t", "around", 0), tasks="gridwrld")
    with pytest.raises(ConfigError, match=r"env\.config\.tasks: 'agent' has its episodes played by programs"):
        list(Wrapper.inner(tasks="agent"))
    with pytest.raises(ConfigError, match=r"env\.config\.tasks: unknown environment 'gridwrld'"):
        list(Wrapper.inner(tasks="gridwrld"))
    assert Wrapper.missing() == "settings: tasks"


def test_then_takes_values_and_coroutines():
    async def seven():
        return 7

    assert then(7, str) == "7"
    assert asyncio.run(then(seven(), str)) == "7"
