"""Rows of preferences as pairs of conversations."""

import base64
import io
import json

import pytest
from PIL import Image

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.supervised.sources import open_rows


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def pair_of(tmp_path):
    """Returns the first pair of a file that has one row twice, and its tools."""

    def read(row, sft=(), **data):
        file = tmp_path / "rows.jsonl"
        file.write_text(2 * (json.dumps(row) + "\n"))
        config = parse_config({
            "model": {"path": "unread"},
            "env": {"name": "dataset"},
            "data": {"train": str(file), "heldout_share": 0, **data},
            "sft": {"objective": "dpo", **dict(sft)},
        })  # fmt: skip
        rows, _ = open_rows(config)
        rows.check()
        pair = next(iter(rows))[1]
        return pair.chosen.messages, pair.rejected.messages, pair.chosen.tools

    return read


TALKS = {"chosen": [user("q"), assistant("g")], "rejected": [user("q"), assistant("b")]}
EXPECTED = [user("q"), assistant("g")], [user("q"), assistant("b")], []


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "g", "rejected": "b"},
        {"prompt": [user("q")], "chosen": [assistant("g")], "rejected": [assistant("b")]},
        {"prompt": "q", **TALKS},
        TALKS,
        {"instruction": "q", "chosen_response": "g", "rejected_response": "b"},
        {
            "conversations": [{"from": "human", "value": "q"}],
            "chosen": {"from": "gpt", "value": "g"},
            "rejected": {"from": "gpt", "value": "b"},
        },
        {
            "input": {"messages": [user("q")]},
            "preferred_output": [assistant("g")],
            "non_preferred_output": [assistant("b")],
        },
    ],
)
def test_published_forms_of_a_pair_are_read_alike(pair_of, row):
    assert pair_of(row) == EXPECTED


def test_settings_name_columns_of_other_names(pair_of):
    row = {"ask": "q", "better": "g", "worse": "b"}
    assert pair_of(row, {"chosen": "better", "rejected": "worse"}, prompt="ask") == EXPECTED


def test_answers_that_both_begin_with_are_read_and_not_learned(pair_of):
    begun = [user("q"), assistant("a"), user("r")]
    chosen, rejected, _ = pair_of({"chosen": [*begun, assistant("g")], "rejected": [*begun, assistant("b")]})
    assert chosen == [user("q"), assistant("a") | {"weight": 0}, user("r"), assistant("g")]
    assert rejected[:3] == chosen[:3]


def test_images_are_shown_in_both_conversations(pair_of):
    file = io.BytesIO()
    Image.new("RGB", (4, 3)).save(file, "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    chosen, rejected, _ = pair_of({"image": uri, **TALKS}, images="image")
    asked = user([{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "q"}])
    assert (chosen, rejected) == ([asked, assistant("g")], [asked, assistant("b")])


def test_tools_inside_the_input_are_offered(pair_of):
    tool = {"type": "function", "function": {"name": "f"}}
    row = {
        "input": {"messages": [user("q")], "tools": [tool]},
        "preferred_output": [assistant("g")],
        "non_preferred_output": [assistant("b")],
    }
    assert pair_of(row)[2] == [tool]


def test_tools_beside_an_input_that_has_none_are_offered(pair_of):
    tool = {"type": "function", "function": {"name": "f"}}
    assert pair_of({"input": {"topic": "t"}, "tools": [tool], **TALKS})[2] == [tool]


@pytest.mark.parametrize(
    ("row", "sft", "error", "message"),
    [
        (
            {"prompt": "q", "best": "g", "rejected": "b"},
            {},
            ConfigError,
            r"sft.objective: needs a column 'chosen', which .* has not; sft.chosen names another; there are",
        ),
        ({"prompt": "q", "rejected": "b"}, {"chosen": "x"}, ConfigError, r"sft.chosen: .* has no column 'x'"),
        (
            {"chosen": "Human: q", "rejected": "Human: q"},
            {},
            InputError,
            r"line 1: chosen: is a text, so which part",
        ),
        ({"prompt": "q", "chosen": " ", "rejected": "b"}, {}, InputError, r"line 1: chosen: is empty"),
        (
            {"chosen": TALKS["chosen"], "rejected": [user("q")]},
            {},
            InputError,
            r"line 1: rejected: has no answer that the other column has not",
        ),
    ],
)
def test_a_row_that_is_no_pair_is_refused(pair_of, row, sft, error, message):
    with pytest.raises(error, match=message):
        pair_of(row, sft)
