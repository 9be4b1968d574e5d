"""BFCL's multi-turn tasks are played and judged by bfcl-eval's own classes, in a Python of its own."""

import asyncio
import json

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.registry import load_env
from asyncrl.envs.benchmarks.multi_turn_calls import MultiTurnCalls, checks_of
from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.benchmarks.importers.records import import_tasks
from asyncrl.extensions.benchmarks.suite import load_suite, part_tasks
from asyncrl.extensions.benchmarks.suite_play import check_suite
from tests.benchmark_env import benchmark_python

pytestmark = pytest.mark.slow
PACKAGES = ("bfcl-eval==2026.3.23", "mpmath==1.3.0")
FILES = {"notes.txt": {"type": "file", "content": "b\na"}, "old": {"type": "directory", "contents": {}}}
RECORD = {
    "id": "multi_turn_miss_func_7",
    "question": [
        [{"role": "user", "content": "Sort notes.txt."}],
        [{"role": "user", "content": "Move it into old."}],
        [],
    ],
    "initial_config": {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": FILES}}}},
    "involved_classes": ["GorillaFileSystem"],
    "missed_function": {"2": ["mv"]},
    "ground_truth": [["sort('notes.txt')"], [], ["mv(source='notes.txt',destination='old')"]],
}
SORT = ("sort", {"file_name": "notes.txt"})
MOVE = ("mv", {"source": "notes.txt", "destination": "old"})


@pytest.fixture(scope="module")
def python(pytestconfig):
    yield benchmark_python(pytestconfig.cache.mkdir("bfcl-eval"), PACKAGES, dependencies=False)
    checks_of.cache_clear()


@pytest.fixture
def task(tmp_path):
    (tmp_path / "bfcl.jsonl").write_text(json.dumps(RECORD) + "\n")
    return import_tasks("bfcl_multi_turn", tmp_path / "bfcl.jsonl")[0]


def played(task, python, *turns):
    """Play turns, each a text or a list of calls; return the opening, the environment and its steps."""

    async def play():
        env = load_env(task.env)(task, python=python)
        opening, steps = await env.reset(), []
        for turn in turns:
            calls = () if isinstance(turn, str) else turn
            made = tuple(ToolCall(f"call{i:05d}", name, given) for i, (name, given) in enumerate(calls))
            steps.append(await env.step(Action("" if calls else turn, made)))
        return opening, env, steps

    return asyncio.run(play())


def test_a_request_ends_with_a_turn_without_calls_and_the_last_one_is_judged(task, python):
    assert task.data["tags"] == ["miss_func"]
    opening, env, steps = played(task, python, [SORT], "Sorted.", "I cannot move it.", [MOVE], "Moved.")
    assert opening == RECORD["question"][0]
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in env.tools}
    assert "sort" in offered and "mv" not in offered
    assert offered["sort"]["type"] == "object"
    assert [(m["role"], m["content"]) for m in steps[0].messages] == [("tool", '{"sorted_content": "a\\nb"}')]
    assert steps[1].messages == RECORD["question"][1]
    # A function that comes later is described where it does.
    assert steps[2].messages[0]["role"] == "user"
    assert json.loads(steps[2].messages[0]["content"].splitlines()[0])[0]["name"] == "mv"
    assert (steps[4].done, steps[4].success, steps[4].reward) == (True, True, 1.0)


def test_what_was_left_undone_or_undone_again_is_wrong(task, python):
    assert not played(task, python, "Sorted.", "No.", [MOVE], "Moved.")[2][-1].success
    # Another state in the end.
    more = ("touch", {"file_name": "extra.txt"})
    assert not played(task, python, [SORT], "Yes.", "No.", [MOVE, more], "Moved.")[2][-1].success
    # Calls that change nothing else do no harm, and neither do those that fail.
    harmless = [("ls", {}), ("pwd", {"no": "such"}), ("fly", {}), ("kill", {"0) or exit(1": 1})]
    _, _, steps = played(task, python, harmless, [SORT], "Yes.", "No.", [MOVE], "Moved.")
    shown = [m["content"] for m in steps[0].messages]
    assert shown[0] == '{"current_directory_content": ["notes.txt", "old"]}'
    assert all(text.startswith("Error during execution: ") for text in shown[1:])
    assert steps[-1].success


def test_a_request_that_takes_too_many_turns_fails(task, python):
    _, _, steps = played(task, python, *[[("pwd", {})]] * 21)
    assert [step.done for step in steps] == [False] * 20 + [True]
    assert (steps[-1].success, steps[-1].truncated) == (False, True)


def test_a_malformed_call_makes_none_and_ends_the_request(task, python):
    async def play():
        env = MultiTurnCalls(task, python)
        await env.reset()
        made = ToolCall("call00000", *SORT)
        return await env.step(Action("", (made,), ("no JSON",))), env.made

    step, made = asyncio.run(play())
    assert [m["content"] for m in step.messages] == ["not called", "error: no JSON", "Move it into old."]
    assert made == [[], []]


def test_a_class_that_bfcl_eval_does_not_have_is_refused_before_anything_is_played(tmp_path, python):
    (tmp_path / "bfcl.jsonl").write_text(json.dumps({**RECORD, "involved_classes": ["Oven"]}) + "\n")
    (tmp_path / "suite.toml").write_text(
        'version = 1\n[parts.calls]\nformat = "bfcl_multi_turn"\nfile = "bfcl.jsonl"\n'
        f"config = {{ python = {json.dumps(python)} }}\n"
    )
    suite = load_suite(str(tmp_path / "suite.toml"))
    with pytest.raises(ConfigError, match="bfcl-eval has no class 'Oven'; it has GorillaFileSystem, MathAPI"):
        check_suite(suite, {"calls": part_tasks("calls", suite.parts["calls"])}, {})


def test_a_python_without_bfcl_eval_is_named(task):
    with pytest.raises(InfrastructureError, match="did not start in /no/such/python: install bfcl-eval"):
        played(task, "/no/such/python")
