"""Each model family: its template's turns are read as they were meant, and tokens are only ever appended."""

import copy
import json

import numpy as np
import pytest

from asyncrl.chat.conversation import Conversation
from asyncrl.chat.renderer import ChatRenderer
from asyncrl.chat.tool_formats import load_format
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.errors import ConfigError
from asyncrl.generation import Generated
from asyncrl.types import Task
from tests.chat.families import FAMILIES

pytestmark = pytest.mark.slow
USER = {"role": "user", "content": "Where is it?"}
SCHEMA = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "where": {"type": "object"},
        "names": {"type": "array"},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}}
    for name in ("search", "open_file")
]
CALLS = [
    ("search", {"query": 'die "Straße"\n<b> & {x}', "count": 3, "where": {"in": ["a", 1.5]}, "names": ["ä"]}),
    ("open_file", {"query": "3", "share": 0.25}),
]
SAID = "Let me look."
THOUGHT = "They ask for it.\nI search."


class Spoken:
    """A family's renderer and parser, and its turns."""

    def __init__(self, renderer, name):
        self.family = FAMILIES[name]
        tokenizer = copy.deepcopy(renderer.tokenizer)
        tokenizer.chat_template = self.family.template
        tokenizer.add_special_tokens({"eos_token": self.family.end})
        tokenizer.add_tokens([*self.family.tokens, *self.family.stops], special_tokens=True)
        self.renderer = ChatRenderer(tokenizer, tokenizer.convert_tokens_to_ids(list(self.family.stops)))
        self.parse, self.split = load_format(
            self.family.tool_format, self.family.reasoning_format, self.renderer
        )

    def message(self, calls=()):
        """An assistant message with as much as the family's turns may hold."""
        message = {"role": "assistant", "content": SAID if self.family.says or not calls else ""}
        if self.family.reasons:
            message["reasoning_content"] = THOUGHT
        if calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "id": f"functions.{name}:{number}"
                    if "kimi" in self.family.tool_format
                    else f"call0000{number}",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (name, arguments) in enumerate(calls)
            ]
        return message

    def write(self, message):
        """The text of a turn as the policy would sample it."""
        written = dict(message)
        ids = self.renderer.assistant(written, TOOLS)
        assert ids[-1] in self.renderer.stop_token_ids
        text = self.renderer.text(ids)
        if self.family.reasons and THOUGHT not in text:
            # The template drops reasoning even from the last turn; the policy writes it all the same.
            text = THOUGHT + text
        return text


@pytest.fixture(scope="module", params=list(FAMILIES))
def spoken(request, renderer):
    return Spoken(renderer, request.param)


def read(action):
    return [(call.name, call.arguments) for call in action.tool_calls]


def test_calls_text_and_reasoning_come_back_as_they_were_written(spoken):
    calls = CALLS[: spoken.family.most_calls]
    message = spoken.message(calls)
    action = spoken.parse(spoken.write(message), TOOLS)
    assert read(action) == calls
    assert action.parse_errors == ()
    assert action.content == (SAID if spoken.family.says else "")
    assert action.reasoning == (THOUGHT if spoken.family.reasons else "")
    assert [call.id for call in action.tool_calls] == [call["id"] for call in message["tool_calls"]]


def test_a_turn_without_a_call_is_its_text(spoken):
    for tools in (TOOLS, ()):
        action = spoken.parse(spoken.write(spoken.message()), tools)
        assert (action.content, read(action), action.parse_errors) == (SAID, [], ())
        assert action.reasoning == (THOUGHT if spoken.family.reasons else "")


def test_a_call_that_was_cut_off_is_an_error_and_not_half_a_call(spoken):
    text = spoken.write(spoken.message(CALLS[:1]))
    start = text.index("Straße")
    for end in (start + 3, start + 12):
        action = spoken.parse(text[:end], TOOLS)
        assert read(action) == []
        assert action.parse_errors and action.parse_errors[0].startswith("malformed tool call")


def test_a_whole_call_before_one_that_was_cut_off_is_made(spoken):
    if spoken.family.most_calls < 2:
        pytest.skip("one call a turn")
    text = spoken.write(spoken.message(CALLS))
    action = spoken.parse(text[: text.rindex("open_file") + 14], TOOLS)
    assert action.parse_errors
    # One list holds all calls of Llama 4's and of Mistral's older form: it is broken as a whole.
    assert read(action) == (
        [] if spoken.family.tool_format == "llama4_pythonic" or "[{" in text else CALLS[:1]
    )


def test_a_conversation_only_grows_and_agrees_with_the_template_where_that_keeps_reasoning(spoken):
    """A turn with calls, their answers, and a last turn, as an episode appends them."""
    calls = CALLS[: spoken.family.most_calls]
    builder = TrajectoryBuilder(Task("t", "none", 0), 0)
    conversation = Conversation(builder, spoken.renderer, [USER], TOOLS)
    seen = []
    for message in (spoken.message(calls), spoken.message()):
        text = spoken.write(message)
        stop = spoken.renderer.assistant(message, TOOLS)[-1:]
        ids = np.concatenate([spoken.renderer.tokenizer.encode(text, add_special_tokens=False), stop])
        builder.add_turn(
            Generated(
                ids.astype(np.int32), np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop"
            )
        )
        action = spoken.parse(spoken.renderer.text(ids), TOOLS)
        conversation.append_action(action, text)
        seen.append(ids)
        if action.tool_calls:
            answers = [{"role": "tool", "content": f"found {n}"} for n, _ in enumerate(action.tool_calls)]
            conversation.append_observation(answers, "")
    assert [turn.tolist() for turn in builder.sampled_turns()] == [ids.tolist() for ids in seen]
    assert conversation.history()["history_matches"] == spoken.family.keeps
    whole = spoken.renderer.tokenizer.decode(builder.token_ids().tolist())
    assert whole.count(THOUGHT) == (2 if spoken.family.reasons else 0)
    if "kimi" in spoken.family.tool_format:
        assert "## Return of functions.open_file:1\nfound 1" in whole
    if spoken.family.tool_format == "harmony":
        assert '<|start|>functions.search to=assistant<|channel|>commentary<|message|>"found 0"' in whole


@pytest.mark.parametrize(
    ("family", "text", "told"),
    [
        ("qwen3-coder", "<tool_call>\n{}\n</tool_call>", "not complete"),
        ("glm-4.5", "\n<think></think>\n<tool_call>\n</tool_call>", "malformed"),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
            '{"query": }<|tool_call_end|><|tool_calls_section_end|>',
            "malformed",
        ),
        ("llama-4", "[search(query=1 + x)]", "could not be read"),
        (
            "gpt-oss",
            "<|channel|>commentary to=python <|constrain|>json<|message|>{}",
            "no recipient 'python'",
        ),
        ("gpt-oss", "<|channel|>commentary to=functions.search<|message|>{", "malformed"),
        ("llama-3-vllm", '{"name": "search", "parameters": {]}', "could not be read"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_to_the_model(renderer, family, text, told):
    action = Spoken(renderer, family).parse(text, TOOLS)
    assert read(action) == []
    assert told in action.parse_errors[0]


def test_calls_that_are_only_thought_of_are_not_made(renderer):
    for family in ("qwen3", "qwen3-coder"):
        spoken = Spoken(renderer, family)
        call = spoken.write(
            {"role": "assistant", "content": "", "tool_calls": spoken.message(CALLS)["tool_calls"]}
        )
        action = spoken.parse(f"<think>\nMaybe {call}\n</think>\n\nNo.", TOOLS)
        assert (action.content, read(action)) == ("No.", [])
        # Reasoning that was not ended in time.
        assert read(spoken.parse(f"<think>\nMaybe {call}", TOOLS)) == []


def test_a_format_whose_tokens_the_tokenizer_lacks_is_refused_with_what_is_missing(renderer):
    for tools, reasoning, missing in (
        ("deepseek_v31", "", "DeepSeek"),
        ("llama3_json", "", "python_tag"),
        ("hermes", "deepseek_r1", "think"),
    ):
        with pytest.raises(ConfigError, match=missing) as refused:
            load_format(tools, reasoning, renderer)
        assert f"'{reasoning or tools}' does not suit the model's tokenizer" in str(refused.value)


def test_arguments_of_every_depth_survive_vllms_types(renderer):
    spoken = Spoken(renderer, "qwen3-coder")
    where = {"deep": [{"a": [1, 2.5, "x", {"b": "c"}]}]}
    message = spoken.message([("search", {"where": where})])
    action = spoken.parse(spoken.write(message), TOOLS)
    assert json.dumps(action.tool_calls[0].arguments) == json.dumps({"where": where})
