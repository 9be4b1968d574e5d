"""Whatever an agent starts and however long it takes, its step ends with an outcome, and not as a lost episode."""

import asyncio
from functools import partial

import pytest

from asyncrl.env.config_check import check_environment, first_task
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task

STEP_S = 20.0
ENDLESS = "while True: pass\n"
QUERY = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM r) SELECT count(*) FROM r"


def calls(name, count=1, **arguments):
    return [(name, arguments)] * count


def act(*made):
    return Action("", tuple(ToolCall(f"call{n:05d}", name, given) for n, (name, given) in enumerate(made)))


def edit_to(text, env):
    path = next(path for path in env.files if "/" not in path)
    return act(*calls("edit", path=path, old=env.files[path], new=text(env.files[path])))


BOMB = "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(A(x)))))\nint main(){int a; B(B(a++;))}"
TURNS = {
    "programs without an end": ("math_tool", {}, [act(*calls("python", 40, code=ENDLESS))]),
    "queries without an end": ("sql", {"level": 2}, [act(*calls("query", 60, sql=QUERY))]),
    "a query as the answer": ("sql", {"level": 2}, [Action(QUERY)]),
    "commands that sleep": ("terminal", {}, [act(*calls("shell", 4, command="sleep 100"))]),
    "a file that nobody writes to": (
        "terminal", {}, [act(*calls("shell", command="for n in out answer; do mkfifo $n.txt; done")), Action("done")],
    ),
    "scripts that sleep when they are tested": (
        "terminal", {"level": 3},
        [
            act(*calls("shell", command="for n in report show digest; do printf '#!/bin/sh\\nsleep 99' >$n.sh; done")),
            act(*calls("shell", command="chmod +x *.sh")), Action("done"),
        ],
    ),
    "tests without an end": (
        "repair", {}, [partial(edit_to, lambda text: ENDLESS), act(*calls("run_tests", 8)), Action("done")],
    ),
    "slow modules": (
        "repair", {},
        [partial(edit_to, lambda text: text + "\nimport time\ntime.sleep(4.8)\n"), act(*calls("run_tests", 8))],
    ),
    "a program that sleeps in each test": (
        "code", {"attempts": 1}, [Action("```python\nimport time\ntime.sleep(9)\nprint(1)\n```")],
    ),
    "a program that takes long to compile": (
        "code", {"attempts": 1, "language": "c"},
        [Action(f"```c\n{BOMB}\n```")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("env", "config", "turns"), TURNS.values(), ids=list(TURNS))
def test_a_policy_cannot_void_an_episode_by_taking_long(env, config, turns):
    async def play():
        host = EnvHost()
        await host.start()
        try:
            session = await host.open(Task("seed-3", env, 3), config)
            for index, turn in enumerate(turns):
                action = turn(session.env) if callable(turn) else turn
                step = await host.step(session.id, index, action, STEP_S)
                if step.done:
                    break
            return step, host.counts.failures
        finally:
            await host.close_all()
            await LauncherClient.close_shared()

    step, failures = asyncio.run(play())
    assert not failures
    assert step.reward == 0.0


@pytest.mark.parametrize(
    ("env", "config", "least"),
    [
        ("math_tool", {"time_limit_s": 60.0}, 93),
        ("sql", {"time_limit_s": 25.0}, 39),
        ("terminal", {"command_timeout_s": 30.0}, 84),
    ],
)
def test_limits_that_a_step_has_no_time_for_are_refused_before_the_start(env, config, least):
    task = first_task(env, config, "train")
    with pytest.raises(
        ConfigError, match=rf"env\.step_timeout_s: must be at least {least} with the time limits of '{env}'"
    ):
        check_environment(env, config, task, step_timeout_s=30.0)
    check_environment(env, config, task, step_timeout_s=float(least))
    check_environment(env, config, task)


@pytest.mark.parametrize("env", ["math_tool", "sql", "terminal", "repair", "code", "gridworld"])
def test_the_limits_of_the_defaults_fit_the_default_step(env):
    check_environment(env, {}, first_task(env, {}, "train"), step_timeout_s=30.0)
