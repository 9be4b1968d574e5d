"""Math with a Python tool: what the tool shows, and which answers are right."""

import asyncio
import random
import subprocess
import sys

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.math_tool.data import LEVELS
from asyncrl.envs.math_tool.env import MathTool
from asyncrl.envs.math_tool.reward import GRADERS, extract
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task


def make(seed=0, **config):
    return MathTool(Task("t", "math_tool", seed), **config)


def play(env, *actions):
    """Step through the actions in one event loop; return the steps."""

    async def whole():
        try:
            return [await env.step(action) for action in actions]
        finally:
            await env.close()
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def python(*programs):
    calls = [ToolCall(f"call-{i}", "python", {"code": code}) for i, code in enumerate(programs)]
    return Action("", tuple(calls))


def test_the_tool_runs_programs_and_shows_output_and_errors():
    step, again = play(make(), python("print(6 * 7)"), python("1/0"))
    assert (step.messages[0]["role"], step.messages[0]["content"], step.done) == ("tool", "42", False)
    assert again.messages[0]["content"].endswith("ZeroDivisionError: division by zero")


def test_parallel_calls_run_side_by_side_in_one_session():
    # Each waits for the file the other one writes, so one after the other would run into the time limit.
    wait = "import os, time\nopen('{}', 'w').close()\nwhile not os.path.exists('{}'): time.sleep(0.01)\nprint('met')"
    (step,) = play(make(time_limit_s=20.0), python(wait.format("a", "b"), wait.format("b", "a")))
    assert [m["content"] for m in step.messages] == ["met", "met"]


def test_a_program_that_never_ends_is_an_observation():
    (step,) = play(make(time_limit_s=0.5), python("while True: pass"))
    assert step.messages[0]["content"] == "error: time limit exceeded"


@pytest.mark.parametrize("harm", ["os.kill(0, 9)", "os.chmod('.', 0)", "os.mkdir('main.py')"])
def test_what_a_program_does_to_its_session_is_an_observation(harm):
    env = make()
    *_, end = play(env, python(f"import os; {harm}"), python("print(7)"), Action(env.problem.answer))
    assert (end.done, end.reward) == (True, 1.0)


def test_malformed_calls_are_answered():
    action = Action(
        "", (ToolCall("call-0", "python", {"source": "1"}), ToolCall("call-1", "rm", {})), ("no JSON",)
    )
    (step,) = play(make(), action)
    assert [m["content"] for m in step.messages] == [
        "error: python: argument 'code' is missing",
        "error: no tool 'rm'; there are python",
        "error: no JSON",
    ]


def test_a_turn_without_calls_is_the_final_answer():
    env = make()
    (step,) = play(env, Action(f"I get\n{env.problem.answer}"))
    assert (step.reward, step.success, step.components["used_tool"]) == (1.0, True, 0.0)
    (step,) = play(make(), Action("no idea"))
    assert (step.reward, step.done, step.success) == (0.0, True, False)


def test_the_last_turn_ends_the_episode_without_running_anything():
    first, last = play(make(max_turns=2), python("print(1)"), python("print(2)"))
    assert not first.done
    assert (last.done, last.messages, last.reward) == (True, [], 0.0)


def test_answers_are_found_in_boxes_tags_and_last_lines():
    assert extract(r"so \boxed{7} or rather \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert extract("<answer> 12 </answer> is it") == "12"
    assert extract("thinking\n\n-3") == "-3"
    assert extract("") == ""


def test_every_programs_output_is_its_problems_answer():
    rng = random.Random(0)
    for generators in LEVELS.values():
        for generator in generators:
            for _ in range(3):
                problem = generator(rng)
                argv = [sys.executable, "-I", "-S", "-c", problem.code]
                printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
                assert GRADERS.equal(problem.answer, printed.strip()), problem


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match=r"time_limit_s: must be from 0.1 to 60, got 0"):
        make(time_limit_s=0)
    with pytest.raises(ValueError, match="level: must be one of"):
        make(level=9)


def test_a_sandbox_backend_that_does_not_exist_is_the_environments_failure():
    async def whole():
        host = EnvHost()
        session = await host.open(Task("t", "math_tool", 0), {"sandbox": "nothing"})
        message = session.env.oracle(session.messages)
        try:
            await host.step(session.id, 0, to_action(message), 10)
        finally:
            await host.close_all()

    with pytest.raises(Exception, match="unknown sandbox backend 'nothing'"):
        asyncio.run(whole())


@pytest.mark.slow
def test_math_tool_passes_every_check():
    assert [f for f in check_env("math_tool", num_tasks=6) if not f.ok] == []
