"""Conversations of public reports that templates refuse or change: docs/reports.md."""

import pytest

from asyncrl.chat.renderer import TemplateRefused
from tests.chat.templates import with_template

ITEMS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}{{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<function=' + call.function.name + '>' }}
        {%- for name, value in call.function.arguments | items %}
            {{- '<parameter=' + name + '>' }}{{- value }}
        {%- endfor %}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Writes each argument by itself, as Qwen3-Coder's and Qwen3.8's templates do."""
AS_JSON = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}{{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '{"name": "' + call.function.name + '", "arguments": ' }}{{- call.function.arguments | tojson }}{{- '}' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Writes the object as JSON, as Qwen2.5's and Hermes's templates do."""


def called(arguments):
    call = {"type": "function", "id": "abcdefghi", "function": {"name": "mul", "arguments": arguments}}
    return [
        {"role": "user", "content": "3 * 18?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "54", "tool_call_id": "abcdefghi"},
    ]


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (ITEMS, "<function=mul><parameter=a>3<parameter=b>18"),
        (AS_JSON, '{"name": "mul", "arguments": {"a": 3, "b": 18}}'),
    ],
)
@pytest.mark.parametrize("arguments", [{"a": 3, "b": 18}, '{"a": 3, "b": 18}'])
def test_arguments_as_json_text_are_written_as_an_object_is(renderer, template, written, arguments):
    # Qwen3-Coder#444, Qwen3#1894: OpenAI's messages have text, which templates refuse or quote once more.
    made = with_template(renderer, template, "<|im_end|>")
    text = made.tokenizer.decode(made.opening(called(arguments)))
    assert written in text


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_a_call_without_arguments_has_an_empty_object(renderer, arguments):
    made = with_template(renderer, AS_JSON, "<|im_end|>")
    assert '"arguments": {}}' in made.tokenizer.decode(made.opening(called(arguments)))


def test_text_that_is_no_object_stays_as_it_is(renderer):
    made = with_template(renderer, AS_JSON, "<|im_end|>")
    assert '"arguments": "[1, 2]"}' in made.tokenizer.decode(made.opening(called("[1, 2]")))


FIRST_SYSTEM = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role in ('user', 'assistant', 'tool') %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content | string + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Takes a system message at the beginning alone, and writes null as "None"."""


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a"}, {"role": "system", "content": "be brief"}],
        [
            {"role": "user", "content": "a"},
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "b"},
        ],
        [
            {"role": "system", "content": "be kind"},
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
        ],
    ],
)
def test_a_system_message_that_a_template_leaves_out_is_refused_wherever_it_stands(renderer, messages):
    # Rapid-MLX#1765, conversations#197
    made = with_template(renderer, FIRST_SYSTEM, "<|im_end|>")
    with pytest.raises(TemplateRefused, match="system message"):
        made.opening(messages)
    assert "be brief" in made.tokenizer.decode(
        made.opening([{"role": "system", "content": " be\n brief "}, {"role": "user", "content": "a"}])
    ).replace("\n", "")


def test_a_turn_without_text_is_not_written_as_none(renderer):
    made = with_template(renderer, FIRST_SYSTEM, "<|im_end|>")
    said = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "b"},
    ]
    assert "None" not in made.tokenizer.decode(made.opening(said))
