"""Metrics survive torn lines and repeated steps; the plot is drawn from them."""

import json

from asyncrl.run.metrics import ProgressLine, offered_rewards, plot_rewards, read_metrics


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


def step(number, trained, episodes, rewards):
    return {
        "step": number,
        "reward/mean": trained,
        "buffer/offered_episodes": episodes,
        "buffer/offered_reward_sum": rewards,
    }


def test_the_curve_is_that_of_all_episodes_not_of_the_groups_that_were_left_to_train_on():
    # In the second step 30 of 40 episodes succeeded, half of which were in groups without a failure.
    assert offered_rewards([step(1, 0.5, 20, 10.0), step(2, 0.5, 60, 40.0)]) == [0.5, 0.75]


def test_a_step_in_which_nothing_was_finished_has_the_reward_of_its_own_groups():
    assert offered_rewards([step(1, 0.5, 20, 10.0), step(2, 0.25, 20, 10.0)]) == [0.5, 0.25]
