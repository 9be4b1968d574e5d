"""Function calls are judged as BFCL's own checker judges them (`scripts/peers/bfcl_calls.py` compares the two)."""

import json
from pathlib import Path

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.tool_schemas import plain_schema
from asyncrl.envs.benchmarks.call_checks import same_calls
from asyncrl.envs.benchmarks.calls import Calls
from asyncrl.types import Task

TABLE = json.loads((Path(__file__).parent / "bfcl_calls.json").read_text())
"""Functions, answers, and calls that BFCL's checker (bfcl-eval 2026.3.23) takes for right and for wrong."""


def judged(group, calls):
    tools = [{"type": "function", "function": plain_schema(one)} for one in group["functions"]]
    made = [ToolCall("", name, arguments) for call in calls for name, arguments in call.items()]
    return same_calls(made, group["answers"], tools)


@pytest.mark.parametrize("group", TABLE, ids=[group["functions"][-1]["name"] for group in TABLE])
def test_calls_are_right_and_wrong_as_bfcls_checker_says(group):
    assert [calls for calls in group["right"] if not judged(group, calls)] == []
    assert [calls for calls in group["wrong"] if judged(group, calls)] == []


def test_the_table_has_every_kind_of_argument_and_both_verdicts_of_each():
    kinds = {
        schema["type"]
        for group in TABLE
        for function in group["functions"]
        for schema in function["parameters"]["properties"].values()
    }
    assert kinds == {"string", "integer", "float", "boolean", "array", "dict", "tuple", "any"}
    assert all(group["right"] and group["wrong"] for group in TABLE)
    assert sum(len(group["right"]) + len(group["wrong"]) for group in TABLE) == 415


@pytest.mark.parametrize(
    ("calls", "errors", "right"),
    [((), (), True), ((), ("no JSON",), True), ((ToolCall("", "f", {}),), (), False)],
)
def test_where_no_call_is_right_one_that_cannot_be_read_is_none(calls, errors, right):
    env = Calls(Task("t", "x", data={"messages": [], "tools": [], "answers": []}))
    step = env.step(Action("", tool_calls=calls, parse_errors=errors))
    assert (step.success, step.reward) == (right, float(right))


def test_a_task_whose_answer_calls_no_tool_of_its_own_is_refused_before_the_policy_acts():
    with pytest.raises(ValueError, match="task t: answers: there is no tool 'f', so no call can be right"):
        Calls(Task("t", "x", data={"messages": [], "tools": [], "answers": [{"f": {"a": [5]}}]}))
