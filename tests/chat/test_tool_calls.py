"""Tool calls of each model family; malformed ones become messages."""

import pytest

from asyncrl.chat.harmony import parse_harmony
from asyncrl.chat.tool_calls import parse_hermes, parse_llama, parse_mistral
from asyncrl.chat.tool_formats import check_formats
from asyncrl.errors import ConfigError


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
    for parse in (parse_hermes, parse_llama, parse_mistral, parse_harmony):
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
    with pytest.raises(ConfigError, match=r"allowed: hermes, llama, mistral, harmony, and vLLM's .*glm45"):
        check_formats("gpt", "")
    with pytest.raises(
        ConfigError, match=r"model\.reasoning_format: unknown format 'x'; allowed: think, and vLLM's"
    ):
        check_formats("hermes", "x")
    with pytest.raises(ConfigError, match=r"must be left out for model\.tool_format='harmony'"):
        check_formats("harmony", "think")


def test_mistrals_newer_form_names_the_tool_before_its_arguments():
    for text in ('[TOOL_CALLS]f{"x": 1}[TOOL_CALLS]g{}', '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}'):
        assert [(c.name, c.arguments) for c in parse_mistral(text).tool_calls] == [("f", {"x": 1}), ("g", {})]
    assert parse_mistral('[TOOL_CALLS]f{"x": ').parse_errors


def test_llama_calls_are_found_behind_text_and_braces_in_an_answer_are_not_calls():
    assert parse_llama('I call {"name": "f", "parameters": {}}').tool_calls[0].name == "f"
    assert parse_llama("the set {1, 2}").content == "the set {1, 2}"
    assert parse_llama('{"name": "f", "parameters": ').parse_errors
    assert parse_llama("<|python_tag|>print(1)").parse_errors


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('{"x": ' + "1" * 30 + "}", "too large"),
        ('{"x": "\\ud800"}', "surrogate"),
        ('{"x": ' + "[" * 50 + "]" * 50 + "}", "nested too deeply"),
        ('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"x": NaN}', "not a JSON number"),
    ],
)
def test_arguments_that_could_not_be_sent_to_an_environment_are_malformed(arguments, reason):
    for text, parse in (
        (f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>', parse_hermes),
        (f'{{"name": "f", "parameters": {arguments}}}', parse_llama),
        (f"[TOOL_CALLS]f{arguments}", parse_mistral),
    ):
        action = parse(text)
        assert action.tool_calls == ()
        assert reason in action.parse_errors[0]


def test_call_ids_have_the_form_that_mistral_templates_demand():
    ids = [c.id for c in parse_hermes('<tool_call>{"name": "f"}</tool_call>' * 12).tool_calls]
    assert len(set(ids)) == 12
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_a_damaged_turn_of_gpt_oss_never_raises_and_makes_no_call_it_does_not_hold():
    whole = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"x": 1}<|call|>'
    )
    for at in range(len(whole)):
        for text in (whole[:at], whole[:at] + whole[at + 1 :], whole[:at] + "\x00" + whole[at + 1 :]):
            for call in parse_harmony(text).tool_calls:
                assert isinstance(call.arguments, dict)
    action = parse_harmony(whole)
    assert [(c.name, c.arguments) for c in action.tool_calls] == [("f", {"x": 1})]
    assert (action.content, action.reasoning) == ("", "hm")
    before_channel = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>'
    assert parse_harmony(before_channel).tool_calls[0].arguments == {"x": 1}
