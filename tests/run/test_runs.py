"""Runs are found and their states told without touching them."""

import json

import pytest

from asyncrl.errors import ConfigError
from asyncrl.run.runs import RunLines, find_runs, read_config, run_line, state_of
from tests.run.folders import add_step, long_ago, make_run


def test_a_folder_of_runs_a_single_run_and_the_policies_of_a_run_are_found(tmp_path):
    first, second = make_run(tmp_path / "runs" / "a"), make_run(tmp_path / "runs" / "b")
    make_run(second / "policies" / "critic")
    (tmp_path / "runs" / "notes").mkdir()
    assert set(find_runs(tmp_path / "runs")) == {"a", "b", "b/policies/critic"}
    assert find_runs(first) == {"a": first}


@pytest.mark.parametrize("there", [True, False])
def test_a_place_without_runs_is_refused_with_what_to_do(tmp_path, there):
    place = tmp_path if there else tmp_path / "nowhere"
    with pytest.raises(ConfigError, match="asyncrl train" if there else "no such folder"):
        find_runs(place)


def test_a_run_that_writes_is_running_and_one_that_does_not_is_stopped(tmp_path):
    folder = make_run(tmp_path / "a")
    config = read_config(folder)
    assert state_of(folder, config) == "running"
    long_ago(folder)
    assert state_of(folder, config) == "stopped"


def test_a_run_with_a_summary_of_all_its_steps_is_finished(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "summary.json").write_text(json.dumps({"steps": 10, "eval_after": {"mean": 0.9}}))
    (folder / "trainer.json").write_text(json.dumps({"steps": 10, "version": 10}))
    line = run_line("a", folder)
    assert (line.state, line.success_after) == ("finished", 0.9)


def test_a_line_tells_the_last_step_and_what_is_trained(tmp_path):
    line = run_line("a", make_run(tmp_path / "a", steps=3))
    assert (line.step, line.num_steps, line.reward) == (3, 10, 0.3)
    assert (line.environment, line.success_before, line.success_after) == ("gridworld", 0.5, None)


def test_a_run_without_steps_has_a_line_too(tmp_path):
    folder = make_run(tmp_path / "a", steps=0)
    (folder / "config.json").write_text("{}")
    line = run_line("a", folder)
    assert (line.step, line.num_steps, line.reward, line.environment) == (0, 0, None, "")


def test_a_list_reads_only_what_has_changed(tmp_path, monkeypatch):
    folder, lines = make_run(tmp_path / "a"), RunLines()
    first = lines.line("a", folder)
    assert first == run_line("a", folder)
    read = []
    monkeypatch.setattr("asyncrl.run.runs.evaluations", lambda folder: read.append(folder) or [])
    assert lines.line("a", folder) == first
    long_ago(folder)
    assert lines.line("a", folder).state == "stopped"
    seen = len(read)
    assert [lines.line("a", folder).state for _ in range(3)] == ["stopped"] * 3
    assert len(read) == seen
    add_step(folder, 4)
    line = lines.line("a", folder)
    assert (line.step, line.reward, line.state, len(read)) == (4, 0.4, "running", seen + 1)
