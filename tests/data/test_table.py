"""Trajectories in Parquet come back whole."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq

from asyncrl.data.table import TrajectoryTable
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
