"""Metrics are read as columns while they are written."""

from concurrent.futures import ThreadPoolExecutor

from asyncrl.monitor.steps import JsonLines, StepColumns
from tests.monitor.folders import add_step


def test_steps_that_are_appended_are_read_once_they_are_whole(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    assert lines.refresh() == []
    path.write_text('{"a": 1}\n{"a": ')
    assert lines.refresh() == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": 2}\ntorn}\n3\n')
    assert lines.refresh() == [{"a": 1}, {"a": 2}]


def test_a_file_that_was_begun_anew_is_read_from_its_start(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = JsonLines(path)
    path.write_text('{"a": 1}\n{"a": 2}\n')
    lines.refresh()
    path.write_text('{"a": 3}\n')
    assert lines.refresh() == [{"a": 3}]


def test_columns_have_none_where_a_step_has_no_such_number(tmp_path):
    add_step(tmp_path, 1)
    add_step(tmp_path, 2, extra=5, skipped="nan loss", broken=float("nan"))
    steps = StepColumns(tmp_path)
    assert steps.columns(["reward/mean", "extra", "skipped", "broken"]) == {
        "step": [1, 2],
        "reward/mean": [0.1, 0.2],
        "extra": [None, 5],
        "skipped": [None, None],
        "broken": [None, None],
    }
    assert {"extra", "reward/mean"} <= set(steps.names())
    assert not {"skipped", "broken"} & set(steps.names())


def test_a_step_that_was_trained_again_counts_as_trained_last(tmp_path):
    for step, reward in ((1, 0.1), (2, 0.2), (1, 0.7)):
        add_step(tmp_path, step, **{"reward/mean": reward})
    steps = StepColumns(tmp_path)
    assert steps.columns(["reward/mean"]) == {"step": [1, 2], "reward/mean": [0.7, 0.2]}
    assert steps.columns(["reward/mean"], after=1) == {"step": [2], "reward/mean": [0.2]}


def test_threads_that_read_at_once_get_every_record_once(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' for i in range(20000)))
    lines = JsonLines(path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: len(lines.refresh()), range(8)))
    assert found == [20000] * 8
