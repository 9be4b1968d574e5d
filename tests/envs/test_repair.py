"""Repair: faults that matter, tests that show them, edits, and a judge that the agent's code cannot forge."""

import ast
import asyncio
import importlib
import json
import random

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.repair import env as env_module
from asyncrl.envs.repair.cases import CASES
from asyncrl.envs.repair.env import Repair
from asyncrl.envs.repair.faults import Fault, faults
from asyncrl.envs.repair.problem import library_source, make_repository, run
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.types import Task
from tests.envs.playing import play

DONE = Action("done")


def make(seed=0, **config):
    return Repair(Task("t", "repair", seed), **config)


def call(name, **arguments):
    return Action("", (ToolCall("call-0", name, arguments),))


def edit(path, old, new):
    return call("edit", path=path, old=old, new=new)


def said(step):
    return step.messages[0]["content"]


def module_of(env):
    return next(path for path in env.files if "/" not in path)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("return a < b", {"return a <= b", "return a > b"}),
        ("return a + 1", {"return a - 1", "return a + 2"}),
        ("return not a", {"return a"}),
        ("return a and b", {"return a or b"}),
        ("return max(a, b)", {"return min(a, b)"}),
        ("return a // 2", {"return a % 2", "return a // 3"}),
        ("return a == b != a", {"return a != b != a", "return a == b == a"}),
        ("return -a", {"return a"}),
        ("a += b", {"a -= b"}),
        ("return 'text'", set()),
    ],
)
def test_faults_are_one_wrong_expression(line, wrong):
    source = f"def f(a, b):\n    {line}\n"
    assert {fault.apply(source).splitlines()[1].strip() for fault in faults(source, "f")} == wrong


def test_a_fault_changes_its_place_and_nothing_else():
    assert Fault(2, 3, "XY").apply("abcd") == "abXYd"
    for module in CASES:
        source = library_source(module)
        for function in CASES[module]:
            for fault in faults(source, function):
                after = fault.apply(source)
                ast.parse(after)
                assert after.startswith(source[: fault.start]) and after.endswith(source[fault.end :])


def test_every_function_of_the_library_has_cases_and_does_what_its_text_does():
    rng = random.Random(0)
    for module, functions in CASES.items():
        real = importlib.import_module(f"asyncrl.envs.repair.library.{module}")
        source = library_source(module)
        defined = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert defined == set(functions)
        for name, draw in functions.items():
            for _ in range(5):
                arguments = draw(rng)
                value = getattr(real, name)(*json.loads(json.dumps(arguments)))
                assert run(source, name, arguments) == {"value": json.loads(json.dumps(value))}


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_repository_differs_from_the_repaired_one_where_a_hidden_call_shows_it(level):
    for seed in range(25):
        repository = make_repository(level, random.Random(seed))
        broken = [p for p in repository.files if repository.files[p] != repository.repaired[p]]
        assert len(broken) == (2 if level == 3 else 1)
        for path in broken:
            wrong = [
                run(repository.files[path], function, arguments) != expected
                for (module, function, arguments), expected in zip(
                    repository.calls, repository.expected, strict=True
                )
                if f"{module}.py" == path
            ]
            assert any(wrong)
        fixed = dict(repository.files)
        for path, old, new in repository.edits():
            assert fixed[path].count(old) == 1
            fixed[path] = fixed[path].replace(old, new)
        assert fixed == repository.repaired


def test_the_repositorys_tests_fail_first_and_pass_when_it_is_repaired():
    env = make(2, level=2)
    ((path, old, new),) = env.repository.edits()
    before, _, after, end = play(env, call("run_tests"), edit(path, old, new), call("run_tests"), DONE)
    assert said(before).startswith("FAILED test_")
    assert said(before).endswith("3 of 4 passed")
    assert said(after) == "4 of 4 passed"
    assert (end.done, end.reward, end.success, end.components["calls_right"]) == (True, 1.0, True, 1.0)


def test_saying_done_at_once_earns_nothing():
    (end,) = play(make(4), DONE)
    assert (end.done, end.reward, end.success) == (True, 0.0, False)
    assert 0 <= end.components["calls_right"] < 1


def test_another_repair_than_the_original_counts():
    env = make(level=2)
    path, _, new = env.repository.edits()[0]
    text = env.files[path]
    rewritten = env.repository.repaired[path].replace("return ", "return  ").replace('"""', "'''")
    (_, end) = play(env, edit(path, text, rewritten), DONE)
    assert end.reward == 1.0 and rewritten != env.repository.repaired[path], new


def test_reading_searching_and_mistakes():
    env = make(level=2)
    path = module_of(env)
    for action, expected in [
        (call("read", path=path), env.files[path]),
        (
            call("read", path="/etc/passwd"),
            f"error: there is no file '/etc/passwd'; there are {path}, tests/test_{path}",
        ),
        (call("search", text="xyzzy"), "nothing found"),
        (edit(path, "return", "x"), None),
        (edit(path, "", "x"), f"error: old must stand once in {path}, and stands there 0 times"),
        (call("edit", path=path), "error: edit: argument 'old' is missing"),
        (call("write"), "error: no tool 'write'; there are read, search, edit, run_tests"),
    ]:
        (step,) = play(make(level=2), action)
        assert said(step) == expected if expected else "must stand once" in said(step)
    (step,) = play(make(level=2), call("search", text="import unittest"))
    assert said(step) == f"tests/test_{path}:1: import unittest"


def test_calls_of_one_turn_are_carried_out_in_order():
    env = make(level=1)
    path, old, new = env.repository.edits()[0]
    calls = (
        ToolCall("a", "edit", {"path": path, "old": old, "new": new}),
        ToolCall("b", "run_tests", {}),
        ToolCall("c", "read", {"path": path}),
    )
    (step,) = play(env, Action("", calls))
    assert [m["content"] for m in step.messages] == ["edited", "1 of 1 passed", env.repository.repaired[path]]


FORGERIES = {
    "prints a verdict": "import os\nos.write(1, b'\\n[' + b','.join([b'{\"value\":0}'] * 99) + b']\\n')\nos._exit(0)\n",
    "ends the interpreter": "import os\nos._exit(0)\n",
    "equals everything": "class Yes:\n    def __eq__(self, other):\n        return True\n",
    "loops": "while True:\n    pass\n",
    "passes the shown tests only": "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n",
}


@pytest.mark.parametrize("forgery", list(FORGERIES))
def test_code_that_cheats_is_judged_wrong(forgery):
    env = make(3, level=1)
    path = module_of(env)
    steps = play(env, edit(path, env.files[path], FORGERIES[forgery] + env.files[path]), DONE)
    assert (steps[-1].done, steps[-1].reward) == (True, 0.0)


def test_what_must_be_returned_is_never_in_the_judging_process():
    env = make(5, level=1)
    path = module_of(env)
    _, function, arguments = env.repository.calls[0]
    # Returns what the interpreter holds and can read: the hidden arguments are there, the results are not.
    spy = (
        f"\ndef {function}(*arguments, seen=[]):\n"
        "    import gc, os\n"
        "    if seen:\n"
        "        return 0\n"
        "    seen.append(1)\n"
        "    files = [open(os.path.join(d, f), errors='replace').read() for d, _, fs in os.walk('.') for f in fs]\n"
        "    held = [repr(x)[:20000] for x in gc.get_objects() if type(x) is list and len(repr(x)) > 9]\n"
        "    return ''.join(files + held)[:500000]\n"
    )

    async def returned():
        env.files[path] += spy
        given = []
        judge = env_module._last_list
        env_module._last_list = lambda output: given.extend(judge(output)) or given
        try:
            await env._judge()
        finally:
            env_module._last_list = judge
            await LauncherClient.close_shared()
        return given[0]["value"]

    seen = asyncio.run(returned())
    assert repr(arguments) in seen
    assert json.dumps(env.repository.expected) not in seen and repr(list(env.repository.expected)) not in seen


@pytest.mark.parametrize(
    "harm",
    [
        "import os, sys; os.write(1, b'[' * 200_000); os._exit(0)",
        "import os; os.chmod('.', 0)",
        "import os; os.unlink(__file__); os.makedirs(__file__ + '/x')",
        "import os; os.kill(0, 9)",
    ],
)
def test_code_that_harms_its_session_loses_the_episode_and_does_not_void_it(harm):
    env = make(3, level=1)
    path = module_of(env)
    harmed = edit(path, env.files[path], f"{harm}\n{env.files[path]}")
    *_, end = play(env, harmed, call("run_tests"), call("run_tests"), DONE)
    assert (end.done, end.reward) == (True, 0.0)


def test_the_turn_limit_judges_what_is_there():
    env = make(6, max_turns=1)
    (end,) = play(env, edit(*env.repository.edits()[0]))
    assert (end.done, end.reward, end.truncated) == (True, 1.0, False)
    (end,) = play(make(6, max_turns=1), call("run_tests"))
    assert (end.done, end.reward, end.truncated) == (True, 0.0, True)


def test_the_expert_repairs_both_faults_of_four_modules():
    env = make(8, level=3)
    messages, actions = env.reset(), []
    for _ in range(7):
        actions.append(to_action(env.oracle(messages)))
        messages.append({"role": "tool", "content": ""})
    end = play(env, *actions)[-1]
    assert (end.done, end.reward) == (True, 1.0)


@pytest.mark.slow
def test_it_passes_the_environment_check():
    assert [f for f in check_env("repair", num_tasks=4) if not f.ok] == []
