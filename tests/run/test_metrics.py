"""Metrics survive torn lines and repeated steps; the plot is drawn from them."""

import json

from asyncrl.run.metrics import ProgressLine, plot_rewards, read_metrics


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


def test_a_log_gets_one_line_a_step_with_what_matters(capsys):
    metrics = {"reward/mean": 0.25, "staleness/mean": 0.5, "staleness/max": 1, "tokens_per_s": 99.6}
    line = ProgressLine(10)
    line.show(3, metrics | {"buffer/ready": 2, "buffer/in_flight": 7})
    line.show(10, metrics)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "step 3/10  reward 0.250  staleness 0.50 (max 1)  100 tokens/s  buffer 2 ready 7 running"
    )
    assert last.endswith("  0 s left")
