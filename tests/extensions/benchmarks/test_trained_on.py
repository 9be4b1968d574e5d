"""What is looked for in an evaluation's tasks: rows of files, and those that a run was trained on."""

import json

import pytest

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.benchmarks.trained_on import look_for, training_data
from asyncrl.run.checkpoints import MARKER, STATE, VALUES
from asyncrl.types import Task

QUESTIONS = [f"How many of the {n} red apples has Ann on day {n} of her trip?" for n in range(8)]


def rows(path, chosen):
    path.write_text("".join(json.dumps({"question": QUESTIONS[n], "answer": str(n)}) + "\n" for n in chosen))
    return str(path)


def tasks(*chosen):
    return {"sums": [Task(f"t{n}", "e", 0, "heldout", {"question": QUESTIONS[n]}) for n in chosen]}


def test_each_file_is_looked_through_and_its_rows_are_named_by_their_own_file(tmp_path):
    first, second = rows(tmp_path / "a.jsonl", [0, 1, 2]), rows(tmp_path / "b.jsonl", [3])
    found = look_for(tasks(2, 3, 4), training_data([], [first, second]))["parts"]["sums"]
    told = {source: [(one["task"], one["row"]) for one in found[source]["overlapping"]] for source in found}
    assert told == {first: [("sums-t2", f"{first}, line 3")], second: [("sums-t3", f"{second}, line 1")]}
    assert [found[source]["rows"] for source in (first, second)] == [3, 1]


def test_of_a_run_the_rows_that_it_trained_on_are_looked_through_and_not_those_it_held_out(tmp_path):
    file = rows(tmp_path / "rows.jsonl", range(8))
    run = tmp_path / "run"
    state = run / "checkpoints" / "step-000002" / STATE
    state.mkdir(parents=True)
    (state / VALUES).write_text("{}")
    (state.parent / MARKER).write_text("{}")
    data = {"train": file, "heldout_share": 0.5, "prompt": "{question}", "reward": "exact"}
    config = parse_config({"model": {"path": "base"}, "data": data})
    (run / "config.json").write_text(config.model_dump_json())
    found = look_for(tasks(*range(8)), training_data([str(run)], []))["parts"]["sums"][str(run)]
    assert found["rows"] == 3
    # Those that `data.heldout_share` leaves, which are drawn by their prompts.
    assert [one["task"] for one in found["overlapping"]] == ["sums-t2", "sums-t4", "sums-t7"]


def test_without_training_data_repeats_are_found_all_the_same(tmp_path):
    found = look_for(tasks(1, 2) | {"more": tasks(1)["sums"]}, {})
    assert found["parts"]["more"][""]["repeated"] == [{"task": "more-t1", "first": "sums-t1"}]
    assert found["notes"] == []
    with pytest.raises(ConfigError, match="--trained-on: there is no file or folder"):
        training_data([], [str(tmp_path / "none.jsonl")])
