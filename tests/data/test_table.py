"""Trajectories in Parquet come back whole."""

import dataclasses
import json
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

from asyncrl.data.table import TokenValues, TrajectoryTable, TrajectoryWriter
from asyncrl.data.transcript import encode_transcript, written_messages
from asyncrl.extensions.league.token_extra import NextStates
from asyncrl.types import FailureClass, Status
from tests.train.factories import group, trajectory


def test_every_field_of_a_trajectory_comes_back(tmp_path):
    first = dataclasses.replace(
        trajectory("t", 0, reward=0.5, version=3),
        components={"goal": 1.0},
        success=True,
        info={"agent": "helper"},
    )
    failed = dataclasses.replace(trajectory("t", 1, failure=FailureClass.ENVIRONMENT), error="it broke")
    whole = dataclasses.replace(group("t", [0.0, 0.0], version=3), trajectories=(first, failed))
    path = TrajectoryTable(tmp_path).write(4, [whole])
    one, other = pq.read_table(path).to_pylist()
    assert path.name == "step-000004.parquet"
    assert (one["step"], one["task"], one["group"], one["worker"]) == (4, "t", "g-t", "w")
    assert (one["status"], one["failure"], one["reward"], one["success"]) == ("finished", None, 0.5, True)
    assert json.loads(one["info"]) == {"agent": "helper"}
    assert one["components"] == [{"name": "goal", "value": 1.0}]
    assert (other["status"], other["failure"], other["error"]) == (Status.FAILED, "environment", "it broke")
    for name in ("token_ids", "loss_mask", "behavior_logprobs", "versions"):
        np.testing.assert_array_equal(np.array(one[name]), getattr(first, name))
    assert list(zip(one["turn_start"], one["turn_end"], one["turn_reward"], strict=True)) == [
        (turn.start, turn.end, turn.reward) for turn in first.turns
    ]


def test_what_a_step_computed_for_its_tokens_stands_beside_them_and_is_null_for_the_others(tmp_path):
    one = group("t", [0.0, 1.0, 1.0])
    rows = (one.trajectories[2], one.trajectories[0])
    advantages = [np.arange(t.num_sampled, dtype=np.float32) + 5 * row for row, t in enumerate(rows)]
    path = TrajectoryTable(tmp_path).write(1, [one], TokenValues(rows, {"advantages": advantages}))
    found = [row["advantages"] for row in pq.read_table(path).to_pylist()]
    for row, values, t in ((0, advantages[1], rows[1]), (2, advantages[0], rows[0])):
        assert np.array(found[row])[t.loss_mask].tolist() == values.tolist()
        assert not np.array(found[row])[~t.loss_mask].any()
    assert found[1] is None
    assert pq.read_table(path)["policy_logprobs"].to_pylist() == [None] * 3


def test_a_row_that_a_step_left_out_of_a_column_is_null_there(tmp_path):
    one = group("t", [0.0, 1.0])
    entropies = [
        np.full(t.num_sampled, value, np.float32)
        for t, value in zip(one.trajectories, (np.nan, 1.0), strict=True)
    ]
    path = TrajectoryTable(tmp_path).write(1, [one], TokenValues(one.trajectories, {"entropies": entropies}))
    assert pq.read_table(path)["entropies"].to_pylist() == [None, one.trajectories[1].loss_mask.tolist()]


def test_a_repeated_step_replaces_its_file(tmp_path):
    table = TrajectoryTable(tmp_path)
    table.write(1, [group("a", [0.0, 1.0]), group("b", [0.0, 1.0])])
    path = table.write(1, [group("a", [0.0, 1.0])])
    assert [p.name for p in tmp_path.iterdir()] == ["step-000001.parquet"]
    assert pq.read_table(path).num_rows == 2


def test_a_step_without_groups_is_an_empty_table_with_the_same_columns(tmp_path):
    table = TrajectoryTable(tmp_path)
    empty, full = (
        pq.read_table(table.write(step, groups)) for step, groups in ((1, []), (2, [group("a", [1.0])]))
    )
    assert empty.num_rows == 0
    assert empty.schema == full.schema


CONVERSATION = [
    {"role": "user", "content": "6 × 8?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"type": "function", "id": "call00000", "function": {"name": "calc", "arguments": {"a": 6}}}
        ],
    },
    {"role": "tool", "name": "calc", "tool_call_id": "call00000", "content": "48"},
    {"role": "assistant", "content": "48"},
]


def with_conversation(text, **options):
    return dataclasses.replace(group("t", [0.0]), trajectories=(spoken(text, **options),))


def spoken(text, **options):
    return dataclasses.replace(trajectory("t", 0, reward=0.5), conversation=text, **options)


def test_the_conversation_is_there_with_its_calls_and_the_reward_of_each_turn(tmp_path):
    whole = with_conversation(encode_transcript(CONVERSATION, {1: 0, 3: 1}))
    asked, called, answered, said = one_row(tmp_path, whole)["messages"]
    assert (asked["role"], asked["content"], asked["turn"], asked["reward"]) == ("user", "6 × 8?", None, None)
    assert called["tool_calls"] == [{"id": "call00000", "name": "calc", "arguments": '{"a": 6}'}]
    assert (called["turn"], called["reward"]) == (0, 0.0)
    assert (answered["name"], answered["tool_call_id"], answered["content"]) == ("calc", "call00000", "48")
    assert (said["content"], said["turn"], said["reward"], said["tool_calls"]) == ("48", 1, 0.5, [])


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "7", "[7]", "[[]]", '"x"', "NaN", '{"role": "user"}', '[{"role": "user"}]', "[" * 100_000),
        '[{"role": "assistant", "content": "x", "turn": 9}]',
        '[{"role": "assistant", "content": "x", "turn": false}]',
        '[{"role": "assistant", "content": "x", "turn": -1}]',
        '[{"role": "assistant", "content": "x", "turn": 1e400}]',
        '[{"role": "user", "content": "\\ud800"}]',
        '[{"role": "user", "content": ["x"]}]',
        '[{"role": "user", "content": "x", "name": 7}]',
        '[{"role": "user", "content": "x", "tool_calls": [{"id": "\\udfff", "name": "", "arguments": ""}]}]',
        '[{"role": "user", "content": "x", "tool_calls": {"id": "a"}}]',
    ],
)
def test_a_conversation_that_nobody_kept_or_can_read_is_null(tmp_path, text):
    row = one_row(tmp_path, with_conversation(text))
    assert row["messages"] is None
    assert row["token_ids"]
    assert written_messages(text, 2) == []


def test_odd_texts_of_a_conversation_are_carried(tmp_path):
    odd = [
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": "\ud800",
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
        },
    ]
    messages = one_row(tmp_path, with_conversation(encode_transcript(odd, {2: 0})))["messages"]
    assert [m["content"] for m in messages] == ["", '[{"type": "text", "text": "x"}]', "?"]
    assert messages[2]["tool_calls"] == [{"id": "", "name": "f", "arguments": "{}"}]


def test_what_would_be_markup_elsewhere_is_the_text_of_a_message(tmp_path):
    text = "</script><script>alert(1)</script><!--\u2028\x1b[2J{{7*7}}"
    messages = [{"role": text, "content": text, "name": text}]
    (row,) = one_row(tmp_path, with_conversation(encode_transcript(messages, {0: 0})))["messages"]
    assert (row["role"], row["content"], row["name"], row["turn"]) == (text, text, text, 0)


def one_row(folder, whole):
    (row,) = pq.read_table(TrajectoryTable(folder).write(1, [whole])).to_pylist()
    return row


def test_a_writer_has_written_all_steps_when_it_is_flushed_and_when_it_is_closed(tmp_path):
    writer = TrajectoryWriter(tmp_path)
    for step in range(1, 6):
        writer.put(step, [group("a", [0.0, 1.0])])
    writer.flush()
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-00000{n}.parquet" for n in range(1, 6)]
    writer.put(6, [group("a", [0.0])])
    writer.close()
    assert pq.read_table(tmp_path / "step-000006.parquet").num_rows == 1


def test_a_writer_lets_no_more_than_a_few_steps_wait(tmp_path, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(TrajectoryTable, "write", lambda self, *step: gate.wait(30))
    writer = TrajectoryWriter(tmp_path, ahead=2)
    for step in range(3):
        writer.put(step, [])
    fourth = threading.Thread(target=writer.put, args=(3, []))
    fourth.start()
    fourth.join(0.2)
    assert fourth.is_alive()
    gate.set()
    fourth.join(30)
    writer.close()
    assert not fourth.is_alive()


def test_a_write_that_fails_is_raised_by_every_later_call(tmp_path):
    writer = TrajectoryWriter(tmp_path / "rows")
    (tmp_path / "rows").rmdir()
    writer.put(1, [group("a", [0.0])])
    for call in (writer.flush, lambda: writer.put(2, []), writer.close):
        with pytest.raises(FileNotFoundError):
            call()


def test_an_exploiters_states_and_what_it_trained_on_stand_beside_the_games_rewards(tmp_path):
    one = group("t", [0.0, 1.0])
    ids = (np.array([1, 2, 3], np.int32), np.array([4], np.int32))
    noted = dataclasses.replace(
        one.trajectories[0], extras={"next_states": NextStates(ids, ((0, 3), (1, 1)))}
    )
    one = dataclasses.replace(one, trajectories=(noted, one.trajectories[1]))
    values = TokenValues([noted], {}, [[-0.5, 0.25]])
    first, other = pq.read_table(TrajectoryTable(tmp_path).write(1, [one], values)).to_pylist()
    assert (first["turn_reward"], first["trained_turn_reward"]) == ([0.0, 0.0], [-0.5, 0.25])
    assert (first["next_conversation"], first["next_tokens"]) == ([0, 1], [3, 1])
    assert first["next_token_ids"] == [[1, 2, 3], [4]]
    names = ("trained_turn_reward", "next_conversation", "next_tokens", "next_token_ids")
    assert [other[name] for name in names] == [None] * 4
