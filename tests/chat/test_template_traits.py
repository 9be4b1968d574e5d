"""What a chat template does not show is found when it is loaded, said, and refused where the tasks need it."""

import json

import numpy as np
import pytest

from asyncrl.chat.conversation import Conversation
from asyncrl.chat.renderer import ChatRenderer, TemplateRefused, load_renderer
from asyncrl.chat.template_check import (
    check_reasoning,
    found_reasoning_format,
    notes_on_arguments,
    notes_on_template,
    refuse_template,
)
from asyncrl.chat.template_traits import CALLS, LATER_SYSTEM, RESULT, RESULTS, SYSTEM, TOOLS, TWO_SYSTEM
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError
from asyncrl.generation import Generated
from asyncrl.types import Task
from tests.chat.families import DEEPSEEK_V3, GLM_47, QWEN3
from tests.chat.real_templates import FOLDER, make_tokenizer, stops_of, template_files
from tests.chat.templates import LLAMA_31, THINKING

USER = {"role": "user", "content": "Where is it?"}
SYSTEM_MESSAGE = {"role": "system", "content": "Be brief."}
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
    },
}
NO_TOOLS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
NO_RESULTS = """\
{%- if tools %}{{ '<|im_start|>system\\n' + tools | tojson + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages if message.role != 'tool' %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
ONE_RESULT = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if message.role != 'tool' or messages[loop.index0 - 1].role != 'tool' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
STRICT = """\
{%- for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('the system message must be at the beginning') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
PARTS = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
NULL_CONTENT = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is none %}
        {%- for call in message.tool_calls %}
            {{- call.function.name + ' ' + call.function.arguments | tojson }}
        {%- endfor %}
    {%- else %}{{ message.content }}{% endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
INSIDE_THE_TURN = """\
{{- '<bos>' }}
{%- if tools %}{{ '<|turn>system\\n' + tools | tojson + '<turn|>\\n' }}{% endif %}
{%- for message in messages if message.role != 'tool' %}
    {%- set after = messages[loop.index0 + 1:] %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {%- if not (role == 'model' and loop.previtem is defined and loop.previtem.tool_calls) %}
        {{- '<|turn>' + role + '\\n' }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<|tool_call>call:' + call.function.name + call.function.arguments | tojson + '<tool_call|>' }}
    {%- endfor %}
    {%- if message.tool_calls %}
        {%- set place = namespace(found=false, over=false, number=0) %}
        {%- for other in messages %}
            {%- if place.found and not place.over %}
                {%- if other.role == 'tool' %}
                    {{- '<|tool_response>response:' + other.content + '<tool_response|>' }}
                {%- else %}{% set place.over = true %}{% endif %}
            {%- endif %}
            {%- if other == message %}{% set place.found = true %}{% set place.over = false %}{% endif %}
        {%- endfor %}
    {%- endif %}
    {{- message.content }}
    {%- if message.content or not message.tool_calls %}{{ '<turn|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|turn>model\\n' }}{% endif %}
"""
"""As Gemma 4's: the results of calls stand inside the turn that made them, before its text."""


def make_renderer(template, *stops):
    stops = list(stops) or ["<|im_end|>"]
    tokenizer = make_tokenizer(template + "<|tool_response><turn|>"[:0], stops)
    return ChatRenderer(tokenizer, tokenizer.convert_tokens_to_ids(stops))


def result(number, text):
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": "look", "content": text}


def lacking(renderer):
    return {*renderer.traits.dropped, *renderer.traits.refused}


@pytest.mark.parametrize(
    ("template", "stops", "missing"),
    [
        (QWEN3, (), set()),
        (GLM_47, ("<|endoftext|>", "<|user|>", "<|observation|>"), {LATER_SYSTEM}),
        (DEEPSEEK_V3, ("<｜end▁of▁sentence｜>",), set()),
        (LLAMA_31, ("<|eot_id|>",), {RESULTS}),
        (NO_TOOLS, (), {TOOLS, CALLS}),
        (NO_RESULTS, (), {CALLS, RESULT, RESULTS}),
        (ONE_RESULT, (), {CALLS, RESULTS}),
        (STRICT, (), {TOOLS, CALLS, TWO_SYSTEM, LATER_SYSTEM}),
        (NULL_CONTENT, (), {TOOLS}),
        (PARTS, (), {TOOLS, CALLS}),
        (INSIDE_THE_TURN, ("<turn|>",), set()),
    ],
)
def test_what_a_template_leaves_out_or_refuses_is_found(template, stops, missing):
    asked = {TOOLS, CALLS, RESULT, RESULTS, SYSTEM, TWO_SYSTEM, LATER_SYSTEM}
    assert lacking(make_renderer(template, *stops)) & asked == missing


def test_tools_that_the_template_does_not_show_are_refused_and_text_alone_is_not():
    renderer = make_renderer(NO_TOOLS)
    assert renderer.text(renderer.opening([USER])) == (
        "<|im_start|>user\nWhere is it?<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(
        TemplateRefused, match="does not show tools: 'asyncrltool' of a probe is not in what it"
    ):
        renderer.opening([USER], [LOOK])
    refuse_template(renderer, needs_tools=False)
    notes = notes_on_template(renderer, needs_tools=False)
    assert notes == ["model.chat_template: the chat template does not show tools; these tasks need none"]
    with pytest.raises(
        ConfigError, match=r"model\.chat_template: the environment offers tools, and the chat template"
    ):
        refuse_template(renderer, needs_tools=True)


def test_an_argument_that_the_template_does_not_read_is_told():
    given = {"enable_thinking": False}
    assert notes_on_arguments(make_renderer(NO_TOOLS), given) == [
        "model.chat_template_args: 'enable_thinking' changes nothing, since the chat template does not read it"
    ]
    reads = make_renderer("{% if enable_thinking is defined %}.{% endif %}" + NO_TOOLS)
    assert notes_on_arguments(reads, given) == notes_on_arguments(reads, {}) == []


def test_results_that_the_template_does_not_show_are_refused():
    renderer = make_renderer(NO_RESULTS)
    with pytest.raises(TemplateRefused, match="does not show the result of a call"):
        renderer.observation([result(0, "48")], [LOOK])
    with pytest.raises(ConfigError, match="does not show the result of a call"):
        refuse_template(renderer, needs_tools=True)
    one = make_renderer(ONE_RESULT)
    refuse_template(one, needs_tools=True)
    assert "48" in one.text(one.observation([result(0, "48")], [LOOK]))
    with pytest.raises(TemplateRefused, match="does not show the results of two calls"):
        one.observation([result(0, "48"), result(1, "49")], [LOOK])


def test_text_is_written_in_the_form_that_the_template_shows():
    parts, joined, null = (make_renderer(template) for template in (PARTS, NO_TOOLS, NULL_CONTENT))
    assert (parts.traits.text_in_parts, joined.traits.parts_joined, null.traits.no_content) == (
        True,
        True,
        True,
    )
    in_parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert "<|im_start|>user\nWhere is it?<|im_end|>" in parts.text(parts.opening([USER]))
    assert "<|im_start|>user\na\nb<|im_end|>" in joined.text(joined.opening([in_parts]))
    call = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {"x": "up"}}}
    said = null.assistant({"role": "assistant", "content": "", "tool_calls": [call]})
    assert null.text(said) == 'look {"x": "up"}'


@pytest.mark.parametrize("stops", [("<turn|>",), ("<eos>", "<turn|>", "<|tool_response>")])
@pytest.mark.parametrize("results", [["RESULT-1"], ["RESULT-1", "RESULT-2"]])
def test_results_inside_the_turn_that_called_reach_the_model(stops, results):
    renderer = make_renderer(INSIDE_THE_TURN, *stops)
    ids = renderer.observation([result(n, text) for n, text in enumerate(results)], [LOOK])
    closing = "<tool_response|><|tool_response>response:".join(results)
    assert renderer.tokenizer.decode(ids.tolist()) == f"response:{closing}<tool_response|>"
    opens_results = renderer.tokenizer.convert_tokens_to_ids("<|tool_response>")
    assert opens_results in renderer.stop_token_ids, "sampling ends where the results begin"
    call = {"type": "function", "id": "call00000", "function": {"name": "look", "arguments": {"x": "up"}}}
    turn = renderer.assistant({"role": "assistant", "content": "", "tool_calls": [call]}, [LOOK])
    assert turn[-1] == opens_results
    assert renderer.text(turn) == '<|tool_call>call:look{"x": "up"}<tool_call|>'


def test_variables_of_the_template_hold_for_all_that_is_rendered():
    template = STRICT + "{%- if add_generation_prompt and quiet %}{{ '<think></think>' }}{% endif %}"
    plain = make_renderer(template)
    quiet = plain.with_options({"quiet": True})
    assert plain.with_options({}) is plain and quiet.options == {"quiet": True}
    assert quiet.stop_token_ids == plain.stop_token_ids
    for rendered in (quiet.opening([USER]), quiet.observation([USER])):
        assert quiet.text(rendered).endswith("assistant\n<think></think>")
    assert plain.text(plain.opening([USER])).endswith("assistant\n")


def test_a_template_of_ones_own_and_its_variables_are_loaded(tmp_path, renderer):
    model, own = tmp_path / "model", tmp_path / "own.jinja"
    renderer.tokenizer.save_pretrained(model)
    template = STRICT + "{{ tone or '' }}"
    own.write_text("\ufeff" + template, encoding="utf-8")
    loaded = load_renderer(str(model), {"tone": "!"}, str(own))
    assert loaded.tokenizer.chat_template == template
    assert loaded.options == {"tone": "!"}
    with pytest.raises(ConfigError, match=r"model\.chat_template: '.*none\.jinja' cannot be read"):
        load_renderer(str(model), {}, str(tmp_path / "none.jinja"))


def test_a_tokenizer_without_padding_and_with_a_larger_vocabulary_than_it_names_is_taken(tmp_path, renderer):
    model = tmp_path / "model"
    renderer.tokenizer.save_pretrained(model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings.pop("pad_token", None)
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    loaded = load_renderer(str(model))
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id or loaded.tokenizer.pad_token
    assert loaded.opening([USER]).tolist() == renderer.opening([USER]).tolist()
    assert loaded.stop_token_ids == renderer.stop_token_ids


def test_a_system_message_that_the_template_adds_itself_stands_once():
    template = (
        """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}{% endif %}
"""
        + NO_TOOLS
    )
    renderer = make_renderer(template)
    turn = renderer.assistant({"role": "assistant", "content": "Here."})
    ids = np.concatenate([renderer.opening([USER]), turn, renderer.observation([USER])])
    text = renderer.tokenizer.decode(ids.tolist())
    assert text.count("You help.") == 1
    history = [USER, {"role": "assistant", "content": "Here."}, USER]
    assert renderer.compare_history(ids, history, 1, [turn]) == (True, 0)
    assert "You help." not in renderer.text(renderer.opening([SYSTEM_MESSAGE, USER]))


def test_the_reasoning_format_is_found_in_the_template_and_a_contradiction_is_refused():
    written, opened = make_renderer(QWEN3), make_renderer(THINKING)
    channels = make_renderer(
        QWEN3.replace("<think>\\n", "<|channel>thought\\n").replace("\\n</think>\\n\\n", "\\n<channel|>")
    )
    silent = make_renderer(NO_TOOLS)
    found = [found_reasoning_format(one) for one in (written, opened, channels, silent)]
    assert found == ["think", "think", "", ""]
    assert "writes reasoning as <think>" in check_reasoning(written, "hermes", "")[0]
    assert "opens <think> before each turn" in check_reasoning(opened, "hermes", "")[0]
    assert check_reasoning(written, "hermes", "think") == check_reasoning(silent, "hermes", "think") == []
    assert check_reasoning(silent, "hermes", "") == check_reasoning(channels, "hermes", "") == []
    with pytest.raises(
        ConfigError, match=r"model\.reasoning_format: 'think' reads .* between '<\|channel>thought'"
    ):
        check_reasoning(channels, "hermes", "think")


REAL = template_files()
WITHOUT_TOOLS = {
    "cohere", "cohere2", "deepseek_r1_distill", "deepseekv3", "gemma", "gemma3", "idefics3", "llama3", "llava_next",
    "phi3", "phi3_5", "qwen2_5_vl", "smolvlm",
}  # fmt: skip
"""Real templates that show no tools."""


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason=f"needs the package trl, or its chat_templates named in {FOLDER}")
@pytest.mark.parametrize("name", list(REAL) or ["none"])
def test_tokens_only_grow_over_three_tool_turns_under_real_templates(name):
    tokenizer = make_tokenizer(REAL[name].read_text(encoding="utf-8"), stops_of(name))
    renderer = ChatRenderer(tokenizer, tokenizer.convert_tokens_to_ids(stops_of(name)))
    assert USER["content"] in renderer.text(renderer.opening([USER]))
    if name in WITHOUT_TOOLS:
        with pytest.raises(ConfigError, match="does not show tools"):
            refuse_template(renderer, needs_tools=True)
        return
    refuse_template(renderer, needs_tools=True)
    builder = TrajectoryBuilder(Task("t", "none", 0), 0)
    conversation = Conversation(builder, renderer, [USER], [LOOK])
    before = builder.token_ids().copy()
    for turn in range(4):
        calls = (ToolCall("call00000", "look", {"x": f"place{turn}"}),) if turn < 3 else ()
        wire = [
            {"type": "function", "id": c.id, "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls
        ]
        message = {
            "role": "assistant",
            "content": "" if calls else "Done.",
            **({"tool_calls": wire} if wire else {}),
        }
        ids = renderer.assistant(message, [LOOK])
        builder.add_turn(Generated(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop"))
        conversation.append_action(Action(message["content"], calls), renderer.text(ids))
        if calls:
            conversation.append_observation([{"role": "tool", "content": f"RESULT{turn}"}], "")
        grown = builder.token_ids()
        assert grown[: len(before)].tolist() == before.tolist()
        before = grown.copy()
    text = tokenizer.decode(before.tolist())
    assert [text.count(f"RESULT{turn}") for turn in range(3)] == [1, 1, 1]
    assert text.index("RESULT0") < text.index("RESULT1") < text.index("RESULT2")
    assert "look" in renderer.text(renderer.opening([USER], [LOOK])), "tools stand in the opening"
