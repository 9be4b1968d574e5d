"""Tool calls of each model family; malformed ones become messages."""

import pytest

from asyncrl.errors import ConfigError
from asyncrl.rollout.toolcalls import load_parser, parse_hermes, parse_llama, parse_mistral


def test_hermes_calls_are_parsed_with_the_text_around_them():
    text = 'thinking <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><tool_call>{"name": "g"}</tool_call>'
    action = parse_hermes(text)
    assert action.content == "thinking"
    assert [(c.name, c.arguments) for c in action.tool_calls] == [("f", {"x": 1}), ("g", {})]
    assert len({c.id for c in action.tool_calls}) == 2


@pytest.mark.parametrize(
    "body", ["{", "[1]", '{"arguments": {}}', '{"name": 3}', '{"name": "f", "arguments": [1]}', ""]
)
def test_a_malformed_call_becomes_an_error_text_and_no_call(body):
    action = parse_hermes(f"<tool_call>{body}</tool_call>")
    assert action.tool_calls == ()
    assert action.parse_errors[0].startswith("malformed tool call: ")


def test_one_malformed_call_does_not_lose_its_neighbour():
    action = parse_hermes('<tool_call>{</tool_call><tool_call>{"name": "f"}</tool_call>')
    assert [c.name for c in action.tool_calls] == ["f"]
    assert len(action.parse_errors) == 1


def test_plain_text_is_an_answer_in_every_format():
    for parse in (parse_hermes, parse_llama, parse_mistral):
        assert parse(" 42 ").content == "42"
        assert parse("42").tool_calls == ()


def test_llama_and_mistral_calls_are_parsed():
    assert parse_llama('<|python_tag|>{"name": "f", "parameters": {"x": 1}}').tool_calls[0].arguments == {
        "x": 1
    }
    calls = parse_mistral(
        '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]'
    ).tool_calls
    assert [c.name for c in calls] == ["f", "g"]
    assert parse_mistral("[TOOL_CALLS] oops").parse_errors


def test_an_unknown_family_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="allowed: hermes, llama, mistral"):
        load_parser("gpt")
