"""Rows of the forms that people keep conversations in, and what of them is learned."""

import base64
import io
import json
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from asyncrl.config_sections import DataConfig
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.conversations import Conversations, as_messages
from asyncrl.rows.data import open_data

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def conversations(tmp_path, rows, completion="", min_reward=None, **data):
    # A file is read once in a process.
    file = Path(tempfile.mkdtemp(dir=tmp_path)) / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    opened = open_data(DataConfig.model_validate({"train": str(file), "heldout_share": 0.0, **data}))
    return Conversations(opened.train[0], completion, min_reward)


def messages(*args, **named):
    return [made.messages for _, made in conversations(*args, **named)]


def said(user, assistant):
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def test_a_column_of_messages_is_the_conversation(tmp_path):
    assert messages(tmp_path, [{"messages": said("a", "b") + said("c", "d")}]) == [
        said("a", "b") + said("c", "d")
    ]


def test_a_system_message_of_data_goes_before_conversations_that_have_none(tmp_path):
    own = [{"role": "system", "content": "own"}, *said("a", "b")]
    found = messages(tmp_path, [{"messages": said("c", "d")}, {"messages": own}], system="be brief")
    assert found == [[{"role": "system", "content": "be brief"}, *said("c", "d")], own]


def test_conversations_show_the_images_of_their_rows(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    shown = {"type": "image_url", "image_url": {"url": uri}}
    asked = [shown, {"type": "text", "text": "What?"}]
    of_column = {"messages": said("<image>What?", "red"), "image": uri}
    assert messages(tmp_path, [of_column], images="image") == [said(asked, "red")]
    own = {"messages": said([{"type": "image", "image": uri}, asked[1]], "red")}
    assert messages(tmp_path, [own]) == [said(asked, "red")]


def test_the_form_of_sharegpt_is_read(tmp_path):
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    assert messages(tmp_path, [row]) == [said("a", "b")]


def test_a_prompt_and_its_completion_are_texts_or_messages(tmp_path):
    rows = [
        {"prompt": "a", "completion": "b"},
        {"prompt": said("a", "b")[:1], "completion": said("a", "b")[1:]},
    ]
    assert messages(tmp_path, rows[:1]) == [said("a", "b")]
    assert messages(tmp_path, rows[1:]) == [said("a", "b")]


def test_a_question_is_answered_by_its_right_answer_or_by_what_a_template_says(tmp_path):
    rows = [{"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2", "short": 2.0}]
    assert messages(tmp_path, rows, prompt="{question}") == [said("1 + 1?", "1 + 1 = 2\n#### 2")]
    found = messages(tmp_path, rows, completion="It is {short}.", prompt="Say: {question}")
    assert found == [said("Say: 1 + 1?", "It is 2.")]
    assert messages(tmp_path, rows, completion="short", prompt="{question}") == [said("1 + 1?", "2")]


def test_tools_may_be_kept_as_json_text_and_arguments_become_objects(tmp_path):
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    talk = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "content": "2"},
    ]
    for tools in ([tool], json.dumps([tool])):
        ((_, made),) = conversations(tmp_path, [{"messages": talk, "tools": tools}])
        assert made.tools == [tool]
        assert made.messages[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
        assert made.messages[1]["content"] == ""


def test_rows_below_the_least_reward_are_left_out(tmp_path):
    rows = [{"messages": said(f"q{i}", "a"), "reward": i / 2} for i in range(3)]
    found = messages(tmp_path, rows, min_reward=0.5)
    assert [one[0]["content"] for one in found] == ["q1", "q2"]
    with pytest.raises(ConfigError, match=r"sft.min_reward: .* has no column 'reward'"):
        conversations(tmp_path, [{"messages": said("a", "b")}], min_reward=0.5)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "no message of the assistant"),
        (
            {"messages": [*said("a", "b"), {"role": "assistant", "content": "c"}]},
            "two messages of the assistant",
        ),
        (
            {"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]},
            "must be .*'bot'",
        ),
        ({"prompt": "a", "completion": " "}, "an empty completion"),
        ({"prompt": "a"}, "neither messages nor a completion nor a right answer"),
    ],
)
def test_a_row_that_teaches_nothing_is_refused_by_its_line(tmp_path, row, problem):
    good = {"messages": said("x", "y")} if "messages" in row else {"prompt": "x", "completion": "y"}
    rows = [row] if row == {"prompt": "a"} else [good, row]
    with pytest.raises(InputError, match=rf"rows.jsonl, line {len(rows)}: .*{problem}"):
        messages(tmp_path, rows)


def test_a_completion_of_a_column_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"sft.completion: .* has no column 'gold'.*there are: question, answer"
    ):
        conversations(tmp_path, [{"question": "a", "answer": "b"}], "The {gold}", prompt="{question}")
    with pytest.raises(ConfigError, match=r"no column 'gold'; a text names columns in braces"):
        conversations(tmp_path, [{"question": "a", "answer": "b"}], "gold", prompt="{question}")


def test_arguments_that_are_no_json_are_refused():
    call = {"function": {"name": "add", "arguments": "{a: 1}"}}
    with pytest.raises(ValueError, match="arguments of a tool call are no JSON"):
        as_messages("messages", [{"role": "assistant", "content": "", "tool_calls": [call]}])
