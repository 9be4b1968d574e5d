"""The file of samples: appended to only, each sample once, whatever is killed."""

import dataclasses
import json

import pytest

from asyncrl.env.parts import in_part
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.samples import SampleFile, missing_tasks, sample_id, sample_rows
from asyncrl.extensions.benchmarks.suite import Suite
from asyncrl.types import FailureClass, Task
from tests.train.factories import group, trajectory

SUITE = Suite.model_validate(
    {
        "name": "s",
        "version": 1,
        "samples": 2,
        "parts": {"walk": {"env": "gridworld", "tasks": 2, "tags": ["all"], "difficulty": 1}},
    }
)


def played(name="t0", rewards=(0.0, 1.0), **data):
    """A task of the part `walk`, and its group as `mix` plays it."""
    task = Task(name, "gridworld", 3, "heldout", data)
    one = group(name, list(rewards))
    return task, dataclasses.replace(one, task=in_part("walk", task))


def rows_of(name="t0", **data):
    task, one = played(name, **data)
    return list(sample_rows(one, "c", SUITE, "walk", task))


def test_a_sample_says_what_was_played_and_what_came_of_it():
    task, one = played(tags=["all", "late"], level=3)
    said = json.dumps([{"role": "user", "content": "go"}])
    lost = trajectory("t0", 1, failure=FailureClass.INFRASTRUCTURE)
    talked = dataclasses.replace(
        one.trajectories[1], conversation=said, success=True, info={"extracted": "42"}
    )
    first, second = sample_rows(
        dataclasses.replace(one, trajectories=(talked, dataclasses.replace(lost, error="gone"))),
        "c",
        SUITE,
        "walk",
        task,
    )
    assert first["id"] == "c:walk-t0:0"
    assert {
        key: first[key] for key in ("part", "env", "tags", "difficulty", "reward", "success", "failure")
    } == {
        "part": "walk",
        "env": "gridworld",
        "tags": ["all", "late"],
        "difficulty": "3",
        "reward": 1.0,
        "success": True,
        "failure": None,
    }
    assert first["messages"] == [{"role": "user", "content": "go"}]
    assert (first["extracted"], second["extracted"]) == ("42", None)
    assert (second["failure"], second["error"], second["messages"]) == ("infrastructure", "gone", [])
    assert rows_of()[0]["difficulty"] == "1", "that of the part"


def test_a_sample_is_added_once_and_a_torn_line_is_played_again(tmp_path):
    file = SampleFile(tmp_path)
    file.append(rows_of("t0"))
    file.append(rows_of("t0"))
    assert len(file.rows) == 2
    file.close()
    whole = file.path.read_bytes()
    file.path.write_bytes(whole + whole[: len(whole) // 3])
    again = SampleFile(tmp_path)
    assert file.path.read_bytes() == whole
    assert [row["id"] for row in again.rows] == [sample_id("c", "walk-t0", index) for index in (0, 1)]
    again.append(rows_of("t1"))
    again.close()
    assert len([json.loads(line) for line in file.path.read_text().splitlines()]) == 4


def test_a_task_is_missing_while_any_of_its_samples_is(tmp_path):
    file = SampleFile(tmp_path)
    file.append(rows_of("t0"))
    file.append(rows_of("t1")[:1])
    tasks = [in_part("walk", Task(name, "gridworld")) for name in ("t0", "t1", "t2")]
    assert [task.id for task in missing_tasks(file, "c", tasks, 2)] == ["walk-t1", "walk-t2"]
    assert len(missing_tasks(file, "another", tasks, 2)) == 3
    file.append(rows_of("t1"))
    file.close()
    assert [row["id"] for row in file.rows].count("c:walk-t1:0") == 1


def test_two_evaluations_do_not_add_to_one_file(tmp_path):
    file = SampleFile(tmp_path)
    with pytest.raises(ConfigError, match="another evaluation is adding to it"):
        SampleFile(tmp_path)
    file.close()
    SampleFile(tmp_path).close()
