"""A run's times add up over its launches, and a finished run says so instead of starting anything."""

import json
import time

import pytest

from asyncrl.cli import main
from asyncrl.config import parse_config
from asyncrl.run.folder import RunFolder
from asyncrl.run.totals import RunTotals, finished_summary, mark_unfinished

SUMMARY = {
    "steps": 10, "train_wall_s": 20.0, "staleness": {"max": 1}, "max_staleness": 1,
    "busy": {"engine": 0.5, "trainer": 0.75}, "checkpoint": "checkpoints/step-000010",
}  # fmt: skip


def run_folder(path, wanted=10, version=10, trained=10):
    config = parse_config(
        {"model": {"path": "m"}, "env": {"name": "gridworld"}, "train": {"num_steps": wanted}}
    )
    (path / "config.json").write_text(config.model_dump_json())
    (path / "summary.json").write_text(json.dumps(SUMMARY))
    (path / "trainer.json").write_text(json.dumps({"steps": trained, "version": version}))
    return path


def launch(path, resume, monkeypatch, busy, restarts):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    totals = RunTotals(RunFolder(path), resume)
    now[0] += 5
    totals.training_started()
    for seconds, worker, seen in busy:
        now[0] += seconds
        totals.record_engine_busy(worker, seen)
    totals.record_restarts(restarts)
    totals.save()
    return totals


def test_times_and_restarts_add_up_over_launches_even_when_one_was_killed(tmp_path, monkeypatch):
    launch(tmp_path, False, monkeypatch, [(0, "w", 3.0), (10, "w", 9.0)], {"engine-0": 1})
    second = launch(tmp_path, True, monkeypatch, [(0, "w", 0.5), (4, "w", 2.5)], {"engine-0": 2, "env": 1})
    second.training_ended()
    assert second.totals() == {
        "lives": 2, "wall_s": 15.0 + 9.0, "train_wall_s": 10.0 + 4.0, "engine_s": 0.0,
        "engine_busy_s": 6.0 + 2.0,
        "restarts": {"engine-0": 3, "env": 1},
    }  # fmt: skip


def test_engines_that_come_and_go_count_for_as_long_as_the_run_trained_with_them(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with RunFolder(tmp_path / "run") as folder:
        totals = RunTotals(folder, False)
        now[0] = 7.0
        totals.training_started(2)
        for seconds, engines in ((6, 1), (3, 3), (1, 3)):
            now[0] += seconds
            totals.record_engines(engines)
        totals.training_ended()
        now[0] += 100
        # Two for 6 s, one for 3 s, three for 1 s.
        assert totals.totals()["engine_s"] == 12 + 3 + 3
        assert totals.mean_engines() == 1.8


def test_a_worker_that_was_restarted_counts_from_zero(tmp_path, monkeypatch):
    totals = launch(
        tmp_path, False, monkeypatch, [(1, "w", 3.0), (1, "w", 8.0), (1, "w", 2.0), (1, "w", 4.0)], {}
    )
    assert totals.totals()["engine_busy_s"] == 5.0 + 2.0 + 2.0


def test_a_new_run_in_a_folder_counts_nothing_of_an_earlier_one(tmp_path, monkeypatch):
    launch(tmp_path, False, monkeypatch, [(10, "w", 1.0)], {})
    assert launch(tmp_path, False, monkeypatch, [(2, "w", 1.0)], {}).totals()["wall_s"] == 7.0


def state(path):
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*")}


@pytest.mark.parametrize(
    ("changes", "folder", "more"),
    [
        ([], {}, "for more steps: asyncrl train --resume {run} train.num_steps=20"),
        (["train.num_steps=8"], {}, "for more steps: asyncrl train --resume {run} train.num_steps=20"),
        (
            ["train.num_steps=30"],
            {"wanted": 12},
            "every task of its plan was used; to train more, start a new run from its checkpoint: "
            "asyncrl train RECIPE model.path={run}/checkpoints/step-000010",
        ),
    ],
)
def test_resuming_a_finished_run_says_so_and_touches_nothing(tmp_path, capsys, changes, folder, more):
    run = run_folder(tmp_path, **folder)
    before = state(run)
    assert main(["train", "--resume", str(run), *changes]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"finished: {run}; nothing was started",
        "10 steps in 20 s, staleness at most 1 of 1 allowed; engine busy 50%, trainer busy 75%",
        f"plot: {run}/reward.png   summary: {run}/summary.json",
        more.format(run=run),
    ]
    assert state(run) == before


def test_more_steps_or_an_unfinished_end_go_on(tmp_path):
    run = run_folder(tmp_path)
    assert finished_summary(run, 10) is not None
    assert finished_summary(run, 11) is None
    run_folder(run, wanted=12, version=12, trained=12)
    assert finished_summary(run, 12) is None, "the summary is of an earlier launch"
    run_folder(run)
    mark_unfinished(run)
    assert finished_summary(run, 10) is None
