"""Episodes are read back by task; `asyncrl compare` says how two evaluations differ."""

import dataclasses
import gzip
import json

import pytest

from asyncrl.cli import main
from asyncrl.errors import ConfigError
from asyncrl.evaluation.rows import episode_rows, write_rows
from asyncrl.extensions.benchmarks.episode_values import metric_of, values_by_task
from asyncrl.types import FailureClass
from tests.evaluation.test_rows import evaluated
from tests.train.factories import group, trajectory


def test_episodes_that_the_infrastructure_failed_are_left_out_and_those_of_the_agent_are_not(tmp_path):
    one = group("t", [1.0])
    failed = [trajectory("t", 1, failure=kind) for kind in (FailureClass.INFRASTRUCTURE, FailureClass.AGENT)]
    whole = dataclasses.replace(one, trajectories=(*one.trajectories, *failed))
    write_rows(tmp_path / "rows.jsonl", episode_rows([whole], 3))
    assert values_by_task(tmp_path / "rows.jsonl", "reward") == {"gridworld/t": [1.0, 0.0]}


def test_rewards_are_compared_where_no_episode_has_a_verdict(tmp_path):
    paths = [tmp_path / name for name in ("judged", "unjudged")]
    write_rows(paths[0], episode_rows(evaluated([[1.0], [0.0]]), 1))
    write_rows(paths[1], episode_rows([group("t0", [0.25])], 1))
    assert metric_of(paths) == "success"
    assert metric_of(paths[1:]) == "reward"
    assert values_by_task(paths[1], "success") == {"gridworld/t0": [0.0]}
    assert values_by_task(paths[1], "reward") == {"gridworld/t0": [0.25]}


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}\n", "holds no rows"), ("no json\n", "holds no rows"), ("", "no episode counts")],
)
def test_a_file_of_something_else_is_refused(tmp_path, text, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        values_by_task(path, "success")


def test_samples_of_several_checkpoints_are_not_taken_for_those_of_one(tmp_path):
    (row,) = episode_rows(evaluated([[1.0]]), 1)
    write_rows(tmp_path / "rows.jsonl", [row | {"checkpoint": name} for name in "ab"])
    with pytest.raises(ConfigError, match="holds several checkpoints, which the report beside it compares"):
        values_by_task(tmp_path / "rows.jsonl", "success")


def test_evaluations_are_compared_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rewards in (("a", [[0.0, 1.0]] * 8), ("b", [[1.0, 1.0]] * 8), ("c", [[0.0, 1.0]] * 8)):
        write_rows(tmp_path / name, episode_rows(evaluated(rewards), 2))
    assert main(["compare", "a", "b", "c", "--json", "out.json"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("a  success 0.500 [")
    # Two of 2^8 swaps are as extreme; Holm doubles it for the two comparisons.
    assert said[3].startswith(
        "b  +0.500 [+0.500, +0.500] against a, p = 0.0156; better on 8, worse on 0 of 8 tasks"
    )
    assert said[4].startswith("c  +0.000 [+0.000, +0.000] against a, p = 1.0000")
    assert [row["p_value"] for row in json.loads((tmp_path / "out.json").read_text())] == [2 / 256, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "needs two or more"),
        (["a", "nowhere"], "nowhere: cannot be read"),
        (["a", "other"], "two tasks that both"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a", episode_rows(evaluated([[1.0]] * 3), 1))
    others = (
        dataclasses.replace(one, task=dataclasses.replace(one.task, id="x" + one.task.id))
        for one in evaluated([[1.0]])
    )
    write_rows(tmp_path / "other", episode_rows(others, 1))
    assert main(["compare", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_rows_may_be_packed_and_begin_with_a_byte_order_mark(tmp_path):
    write_rows(tmp_path / "plain.jsonl", episode_rows(evaluated([[0.0, 1.0]]), samples=2))
    packed = tmp_path / "packed.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + (tmp_path / "plain.jsonl").read_bytes()))
    assert values_by_task(packed, "success") == {"gridworld/t0": [0.0, 1.0]}
    (tmp_path / "broken.jsonl").write_text('{"env": "gridworld"}\n{')
    with pytest.raises(ConfigError, match="line 2"):
        metric_of([tmp_path / "broken.jsonl"])
