"""Tools of environments in a form that no chat template takes."""

import asyncio

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, Env, Step
from asyncrl.env.tool_schemas import check_tools
from asyncrl.errors import EnvironmentFailure
from asyncrl.types import Task

HERE = __name__
GOOD = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": True}}},
}


class Flat(Env):
    """Offers a tool without its `function`, at the start or with a step."""

    blocking = False

    def __init__(self, task, late=False):
        super().__init__(task)
        self.late = late
        self.tools = [GOOD] if late else [GOOD, {"type": "function", "name": "g"}]

    def reset(self):
        return [{"role": "user", "content": "x"}]

    def step(self, action):
        return Step([{"role": "user", "content": "y"}], agent="helper", tools=[{"function": {"name": "g"}}])


def test_an_environments_malformed_tool_is_its_failure_and_named():
    async def scenario():
        await EnvHost().open(Task("t", f"{HERE}:Flat", 0), {})

    with pytest.raises(
        EnvironmentFailure, match=r"Flat': tools\[1\].function: must be an object with a name"
    ):
        asyncio.run(scenario())


def test_so_is_one_that_comes_with_a_step():
    async def scenario():
        host = EnvHost()
        session = await host.open(Task("t", f"{HERE}:Flat", 0), {"late": True})
        await host.step(session.id, 0, Action("x"), 5.0)

    with pytest.raises(EnvironmentFailure, match=r"step.tools\[0\]: must be"):
        asyncio.run(scenario())


def test_tools_without_parameters_or_with_empty_ones_are_fine():
    bare = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": None, "required": None}},
    }
    assert check_tools((GOOD, bare)) == [GOOD, bare]
