"""Metrics survive torn lines and repeated steps; the plot is drawn from them."""

import json

from asyncrl.train.progress import plot_rewards, read_metrics


def test_a_torn_line_is_skipped_and_a_repeated_step_replaces(tmp_path):
    lines = [json.dumps({"step": s, "reward/mean": r}) for s, r in ((1, 0.1), (2, 0.2), (2, 0.3))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 3, "rew')
    assert [(m["step"], m["reward/mean"]) for m in read_metrics(tmp_path)] == [(1, 0.1), (2, 0.3)]


def test_a_run_without_steps_has_no_plot(tmp_path):
    assert read_metrics(tmp_path) == []
    assert plot_rewards(tmp_path) is None


def test_the_plot_is_a_picture(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    assert plot_rewards(tmp_path, 0.4, 0.9).read_bytes().startswith(b"\x89PNG")
