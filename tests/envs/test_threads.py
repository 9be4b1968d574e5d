"""Threads that an agent spawns: what they read, what comes back, and what they earn."""

import asyncio
import inspect
from typing import ClassVar

import pytest

from asyncrl.env.protocol import MAIN_AGENT, Action, Env, Step, ToolCall
from asyncrl.envs.threads.env import SPAWN, Threads
from asyncrl.errors import ConfigError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.extensions.supervised.demonstrations import demonstrations
from asyncrl.types import Task

HERE = __name__
CONFIG = {"tasks": f"{HERE}:Twice"}


class Twice(Env):
    """Two turns: the first earns 0.25, the second 1."""

    blocking = False
    max_turns = 2
    tools: ClassVar = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    def reset(self):
        self.turns = 0
        return [{"role": "system", "content": "rules"}, {"role": "user", "content": "goal"}]

    def step(self, action):
        self.turns += 1
        if self.turns == 1:
            return Step([{"role": "user", "content": "and now?"}], reward=0.25)
        return Step(done=True, success=True, reward=1.0)


class Later(Twice):
    """The same, in coroutines."""

    async def reset(self):
        return super().reset()

    async def step(self, action):
        return super().step(action)


class Seen(Twice):
    """Opens with a picture."""

    def reset(self):
        super().reset()
        return [{"role": "user", "content": [{"type": "text", "text": "goal"}]}]


def opened(**config):
    env = Threads(Task("t", "threads", 0), **CONFIG | config)
    messages = env.reset()
    return env, asyncio.run(_result(messages)) if inspect.isawaitable(messages) else messages


async def _result(value):
    return await value


def spawn(*prompts, calls=1, **arguments):
    given = arguments or {"prompts": list(prompts)}
    return Action("", tuple(ToolCall(f"c{i}", "spawn", given) for i in range(calls)))


def test_the_agent_has_a_tool_more_and_turns_for_its_threads():
    env, messages = opened(width=3, rounds=2)
    assert [tool["function"]["name"] for tool in env.tools] == ["look", "spawn"]
    assert env.max_turns == 2 + 2 * 4
    assert messages[-1]["content"] == "goal"


def test_each_thread_reads_what_the_agent_was_given_and_its_prompt():
    env, _ = opened()
    step = env.step(spawn("left", "right"))
    assert (step.agent, step.tools, step.done) == ("thread/1", [], False)
    assert [m["content"] for m in step.messages] == ["rules", "goal\nleft"]
    assert {name: [m["content"] for m in one] for name, one in step.ahead.items()} == {
        "thread/2": ["rules", "goal\nright"]
    }
    step = env.step(Action("so\n7 "))
    assert (step.agent, [m["content"] for m in step.messages]) == ("thread/2", ["rules", "goal\nright"])


def test_the_last_line_of_each_comes_back_when_all_have_answered():
    env, _ = opened()
    env.step(spawn("left", "right"))
    env.step(Action("so\n7 "))
    step = env.step(Action(""))
    assert step.agent == MAIN_AGENT
    assert step.messages == [{"role": "tool", "content": "1: 7\n2: "}]


def test_a_prompt_follows_what_is_no_plain_text():
    env, _ = opened(tasks=f"{HERE}:Seen")
    step = env.step(spawn("left"))
    assert step.messages[0]["content"] == [{"type": "text", "text": "goal"}, {"type": "text", "text": "left"}]


@pytest.mark.parametrize("tasks", ["Twice", "Later"])
def test_threads_earn_what_the_agent_earns_before_and_after_them(tasks):
    env, _ = opened(tasks=f"{HERE}:{tasks}")

    def step(action):
        found = env.step(action)
        return asyncio.run(_result(found)) if inspect.isawaitable(found) else found

    assert step(Action("look")).rewards == {}
    step(spawn("left", "right"))
    threads = [step(Action("1")).reward, step(Action("2")).reward]
    last = step(Action("done"))
    assert threads == [0.25, 0.25]
    assert (last.reward, last.rewards) == (1.0, {"thread/1": 1.0, "thread/2": 1.0})


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (spawn(calls=2, prompts=["a"]), "error: spawn must be the only call of a turn"),
        (spawn(prompts="ab"), "error: prompts must be a list of 1 to 2 texts"),
        (spawn(prompts=[]), "error: prompts must be a list of 1 to 2 texts"),
        (spawn("a", "b", "c"), "error: prompts must be a list of 1 to 2 texts"),
        (spawn(prompts=["a", 1]), "error: each prompt must be a text of at most 2000 characters"),
        (spawn("a" * 2001), "error: each prompt must be a text of at most 2000 characters"),
        (spawn(other=1), "error: prompts must be a list of 1 to 2 texts"),
    ],
)
def test_a_call_that_cannot_be_followed_is_answered(action, message):
    env, _ = opened(width=2)
    step = env.step(action)
    assert [m["content"] for m in step.messages] == [message] * len(action.tool_calls)
    assert (step.agent, step.done, step.ahead) == (None, False, {})


def test_a_malformed_call_beside_it_is_answered_too():
    env, _ = opened()
    calls = spawn("a").tool_calls
    step = env.step(Action("", calls, ("no JSON",)))
    assert [m["content"] for m in step.messages] == [
        "error: spawn must be the only call of a turn", "error: no JSON",
    ]  # fmt: skip


def test_there_are_no_more_threads_after_the_last_round():
    env, _ = opened()
    env.step(spawn("a"))
    env.step(Action("1"))
    assert env.step(spawn("b")).messages[0]["content"] == "error: no more threads"


def test_an_expert_divides_a_share_of_the_tasks():
    config = {"tasks": "countdown_several", "task_config": {"problems": 2}, "width": 2, "demonstrated": 0.5}
    found = list(demonstrations(Threads, "threads", config, 40, 1.0, 0))
    assert {one.reward for one in found} == {1.0}
    threads, mains = [one for one in found if one.agent], [one for one in found if not one.agent]
    assert len(mains) == 40
    spawning = [one for one in mains if len(one.messages) == 5]
    assert 10 < len(spawning) < 30
    assert len(threads) == 2 * len(spawning)
    assert all(one.tools == [] for one in threads)
    assert all(SPAWN in one.tools for one in mains)


def test_an_expert_that_needs_more_threads_than_there_are_spawns_none():
    config = {"tasks": "countdown_several", "task_config": {"problems": 3}, "width": 2, "demonstrated": 1.0}
    assert all(not one.agent for one in demonstrations(Threads, "threads", config, 4, 1.0, 0))


def test_the_environment_keeps_its_contract():
    assert [f for f in check_env("threads", config={"tasks": "countdown_several"}) if not f.ok] == []


def test_tasks_are_those_of_the_environment_that_is_played():
    found = next(Threads.tasks("heldout", "threads", tasks="countdown"))
    assert (found.env, found.split) == ("threads", "heldout")
    assert Threads.inner_task(found, tasks="countdown", task_config={"level": 2}) == (
        Task(found.id, "countdown", found.seed, "heldout", found.data),
        {"level": 2},
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tasks": ""}, r"env\.config\.tasks: must name the environment"),
        ({"width": 0}, "width: must be an integer from 1 to 64"),
        ({"rounds": 17}, "rounds: must be an integer from 1 to 16"),
        ({"demonstrated": 1.5}, "demonstrated: must be a number from 0 to 1"),
    ],
)
def test_wrong_settings_are_refused(config, message):
    with pytest.raises((ConfigError, ValueError), match=message):
        opened(**config)
