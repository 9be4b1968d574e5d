"""Metrics are read as columns while they are written."""

from asyncrl.extensions.monitor.steps import StepColumns
from tests.run.folders import add_step


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
