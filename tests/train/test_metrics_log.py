"""What the trainer writes is what readers of the run find, after a crash within a line, too."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asyncrl.run.json_lines import JsonLines
from asyncrl.run.metrics import read_metrics
from asyncrl.train.loop.metrics_log import MetricsLog


def test_steps_written_are_read_back_and_numbers_reach_tensorboard(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(1, {"reward/mean": 0.5, "skipped": "", "flag": True})
    log.write(2, {"reward/mean": 0.75})
    log.close()
    first, second = read_metrics(tmp_path)
    assert (first["step"], first["reward/mean"], first["skipped"], first["flag"]) == (1, 0.5, "", True)
    assert second["reward/mean"] == 0.75
    assert second["time"] >= first["time"]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert board.Tags()["scalars"] == ["reward/mean"]
    assert [(e.step, e.value) for e in board.Scalars("reward/mean")] == [(1, 0.5), (2, 0.75)]


def test_a_line_torn_by_a_crash_does_not_take_the_next_one_with_it(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "rew')
    for step in (2, 3):
        log = MetricsLog(tmp_path)
        log.write(step, {})
        log.close()
    assert [record["step"] for record in lines.new()] == [1, 2, 3]
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_tensorboard_that_fails_is_told_of_once_and_steps_are_still_written(tmp_path):
    (tmp_path / "tensorboard").write_text("not a folder")
    log = MetricsLog(tmp_path)
    for step in (1, 2):
        log.write(step, {"reward/mean": 0.5})
    log.close()
    first, second = read_metrics(tmp_path)
    assert first["sink/error"].startswith("TensorBoard failed: ")
    assert "sink/error" not in second


def test_tensorboard_is_left_out_where_it_is_no_sink(tmp_path):
    log = MetricsLog(tmp_path, tensorboard=False)
    log.write(1, {"reward/mean": 0.5})
    log.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
