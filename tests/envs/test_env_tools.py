"""Tools: schemas, argument checks, concurrent answers."""

import asyncio

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.envs.tools import ToolError, answer_calls, call_message, say, schema

TOOLS = [
    schema("add", "Add.", a="integer", b="number?"),
    schema("shout", "Shout.", text="string"),
    schema("look", "Look."),
]


def answers(action, **handlers):
    return [m["content"] for m in asyncio.run(answer_calls(action, TOOLS, handlers))]


def call(name, **arguments):
    return Action("", (ToolCall("call-7", name, arguments),))


def test_a_schema_lists_parameters_and_which_are_required():
    function = schema("add", "Add.", a="integer", b="number?")["function"]
    assert function["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "number"}},
        "required": ["a"],
    }


def test_a_parameter_may_be_called_name():
    assert schema("open", "Open.", name="string")["function"]["parameters"]["required"] == ["name"]


def test_an_answer_names_its_call():
    (message,) = asyncio.run(answer_calls(call("look"), TOOLS, {"look": lambda: "a wall"}))
    assert message == {"role": "tool", "name": "look", "tool_call_id": "call-7", "content": "a wall"}


def test_optional_arguments_may_be_left_out_and_whole_numbers_are_numbers():
    def add(a, b=1.5):
        return str(a + b)

    assert answers(call("add", a=1), add=add) == ["2.5"]
    assert answers(call("add", a=1, b=2), add=add) == ["3"]


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (call("fly"), "error: no tool 'fly'; there are add, shout, look"),
        (call("add"), "error: add: argument 'a' is missing"),
        (call("add", a=1, c=2), "error: add: there is no argument 'c'; there are a, b"),
        (call("look", far=True), "error: look: there is no argument 'far'; there are none"),
        (call("add", a="1"), "error: add: argument 'a' must be of type integer, got '1'"),
        (call("add", a=True), "error: add: argument 'a' must be of type integer, got True"),
        (call("shout", text=None), "error: shout: argument 'text' must be of type string, got None"),
        (call("shout", text="\ud800"), "error: shout: argument 'text' is no valid text, got '\\ud800'"),
        (Action("", (), ("no JSON",)), "error: no JSON"),
    ],
)
def test_mistakes_are_answered_without_a_handler(action, expected):
    assert answers(action) == [expected]


def test_a_tool_error_is_an_answer_and_any_other_error_escapes():
    def refuse():
        raise ToolError("not now")

    def fail():
        raise RuntimeError("broken")

    assert answers(call("look"), look=refuse) == ["error: not now"]
    with pytest.raises(RuntimeError, match="broken"):
        answers(call("look"), look=fail)


def test_calls_of_one_turn_run_side_by_side_and_are_answered_in_order():
    met = asyncio.Event()

    async def shout(text):
        # The first call can only end when the second one runs before it does.
        if text == "first":
            await asyncio.wait_for(met.wait(), 10)
        met.set()
        return text

    calls = tuple(
        ToolCall(f"call-{i}", "shout", {"text": text}) for i, text in enumerate(("first", "second"))
    )
    assert answers(Action("", calls), shout=shout) == ["first", "second"]


def test_messages_of_the_assistant_are_built():
    assert say("x") == {"role": "assistant", "content": "x"}
    message = call_message(("look", {}), ("add", {"a": 1}))
    assert [c["function"] for c in message["tool_calls"]] == [
        {"name": "look", "arguments": {}},
        {"name": "add", "arguments": {"a": 1}},
    ]
    assert [c["id"] for c in message["tool_calls"]] == ["call00000", "call00001"]


def test_every_answer_carries_the_id_of_its_call_malformed_ones_too():
    action = Action("", (ToolCall("call00000", "look", {}),), ("no JSON",))
    found = asyncio.run(answer_calls(action, TOOLS, {"look": lambda: "a room"}))
    assert [m["tool_call_id"] for m in found] == ["call00000", "fail00000"]
