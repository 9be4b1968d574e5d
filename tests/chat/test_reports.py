"""Conversations of public reports that templates refuse or change: docs/reports.md."""

import copy

import pytest
from tokenizers.processors import TemplateProcessing

from asyncrl.chat.renderer import ChatRenderer, TemplateRefused, load_renderer
from asyncrl.chat.template_check import notes_on_arguments
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


PLAIN = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
CLOSED = PLAIN.replace(
    "{{- '<|im_start|>assistant\\n' }}",
    "{{- '<|im_start|>assistant\\n<think>\\n' + ('' if enable_thinking else '\\n</think>\\n\\n') }}",
)
"""Takes text alone. Closes the reasoning by itself, unless it is told to think."""
ASKED = [{"role": "user", "content": "a"}]


def test_a_text_begins_once_where_template_and_tokenizer_both_begin_it(renderer):
    # trl#3853, vllm#27517, LiveCodeBench#146: <s> stood twice before each prompt.
    tokenizer = copy.deepcopy(renderer.tokenizer)
    tokenizer.chat_template = PLAIN
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "<|im_end|>"})
    begin = tokenizer.convert_tokens_to_ids("<s>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    assert tokenizer.encode("a")[0] == begin, "the tokenizer begins each text"
    made = ChatRenderer(tokenizer)
    assert made.opening(ASKED).tolist().count(begin) == 1
    assert begin not in made.observation([{"role": "user", "content": "b"}]).tolist()


def test_a_message_in_parts_is_written_by_a_template_that_takes_text_alone(renderer):
    # mlx-examples#1195, InternVL#1173, VLM-R1#110: "can only concatenate str (not list) to str"
    made = with_template(renderer, PLAIN, "<|im_end|>")
    parts = [{"type": "text", "text": "who"}, {"type": "text", "text": "is it"}]
    assert "user\nwho\nis it<|im_end|>" in made.tokenizer.decode(
        made.opening([{"role": "user", "content": parts}])
    )


@pytest.mark.parametrize(("thinks", "ends"), [(None, False), (True, True), (False, False)])
def test_a_template_that_closes_the_reasoning_opens_it_when_told_to(renderer, thinks, ends):
    # imp#939, transformers#37949: told to think, the prompt closed the reasoning all the same.
    made = with_template(renderer, CLOSED, "<|im_end|>")
    made = made if thinks is None else made.with_options({"enable_thinking": thinks})
    for prompt in (made.opening(ASKED), made.observation(ASKED)):
        text = made.tokenizer.decode(prompt)
        assert text.endswith("<think>\n") is ends
        assert text.endswith("</think>\n\n") is not ends
    assert made.opens_reasoning() is ends


def test_a_variable_that_the_template_does_not_read_is_told(tiny_model, tmp_path):
    # BigMoeOnEdge#85: reasoning was switched off, the template knew no such switch, and nobody noticed.
    own = tmp_path / "own.jinja"
    own.write_text(CLOSED)
    renderer = load_renderer(tiny_model, {"thinking": False}, str(own))
    assert notes_on_arguments(renderer, {"enable_thinking": False}) == []
    (told,) = notes_on_arguments(renderer, {"thinking": False})
    assert told.startswith("model.chat_template_args: 'thinking' changes nothing")


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
BESIDE_THE_USER = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{%- if tools and loop.first and message.role == 'user' %}{{ tools | tojson }}{%- endif %}"
    "{%- for call in message.tool_calls or [] %}{{ call | tojson }}{%- endfor %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)
"""Shows tools beside a first message of the user alone."""
CUTS = AS_JSON.replace(
    "message.content or ''", "(message.content or '')[: 200 if message.role == 'tool' else 9999]"
)
LAST_FOUR = AS_JSON.replace("in messages", "in messages[-4:]")


def test_tools_that_only_some_conversations_show_are_refused_where_they_are_not(renderer):
    made = with_template(renderer, BESIDE_THE_USER, "<|im_end|>")
    user = {"role": "user", "content": "Look at it."}
    assert "look" in made.text(made.opening([user], [LOOK]))
    with pytest.raises(TemplateRefused, match="does not show the tool 'look' beside these messages"):
        made.opening([{"role": "system", "content": "Be brief."}, user], [LOOK])


def test_a_result_that_the_template_cuts_is_refused(renderer):
    made = with_template(renderer, CUTS, "<|im_end|>")
    assert "asyncrlresultend" in made.traits.lacks("the result of a call")
    whole = with_template(renderer, AS_JSON, "<|im_end|>")
    long = {"role": "tool", "tool_call_id": "call00001", "content": f"first {'and so on ' * 200} final"}
    assert "final" in whole.text(whole.observation([long], [LOOK], {"call00001": "look"}))


def test_a_template_that_shows_the_newest_messages_alone_is_refused_where_there_are_more(renderer):
    made = with_template(renderer, LAST_FOUR, "<|im_end|>")
    said = [
        {"role": role, "content": f"{word} of it"}
        for word, role in zip(
            ["seven", "yes", "eight", "no", "nine"], ["user", "assistant"] * 3, strict=False
        )
    ]
    assert "eight" in made.text(made.opening(said[2:]))
    with pytest.raises(TemplateRefused, match="does not show 'seven' of message 1, of the user"):
        made.opening(said)


@pytest.mark.parametrize(
    "text", ['Say "a\\b" <now> & "then"', "zeile eins\nzeile zwei é\u2028", "1", "", "日本語"]
)
def test_a_result_that_the_template_writes_as_json_is_shown(renderer, text):
    made = with_template(
        renderer, AS_JSON.replace("message.content or ''", "(message.content or '') | tojson"), "<|im_end|>"
    )
    result = {"role": "tool", "tool_call_id": "call00001", "content": text}
    assert len(made.observation([result], [LOOK], {"call00001": "look"}))
