"""The summary of a run: what its policies' trainers and buffers left behind, and its times over all launches."""

import json

import pytest

from asyncrl.launch.evaluation.evaluate import EvalResult
from asyncrl.launch.summary import PolicyResult, RunResult, build_summary

TOTALS = {
    "lives": 2, "wall_s": 50.0, "train_wall_s": 20.0, "engine_busy_s": 30.0, "restarts": {"env": 1},
}  # fmt: skip
STATS = {
    "admitted": 9, "trained": 6, "dropped_by_reason": {"no_signal": 1}, "failed_by_class": {}, "tokens_generated": 500,
}  # fmt: skip
BEFORE = EvalResult(0.25, 0.1, 0.4, 8, 1, None, None, {}, {}, 0)
AFTER = EvalResult(0.75, 0.6, 0.9, 8, 1, 0.5, (0.25, 0.75), {"1": 0.5}, {"environment": 1}, 2)


def trained(folder, version=3, busy_s=8.0, publish_s=2.0, lags=None, pauses_s=(0.1, 0.3)):
    """A policy's folder after its training of `version` steps."""
    folder.mkdir(parents=True, exist_ok=True)
    totals = {
        "steps": version, "version": version, "busy_s": busy_s, "publish_s": publish_s,
        "lags": lags or {"0": 30, "1": 10}, "pauses_s": list(pauses_s), "trained_tokens": 40,
    }  # fmt: skip
    (folder / "trainer.json").write_text(json.dumps(totals))
    lines = [json.dumps({"step": step + 1, "reward/mean": step / 10}) for step in range(version)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return PolicyResult(folder, 4, STATS)


def test_the_summary_has_the_training_of_the_run_and_of_each_further_policy(tmp_path):
    main = trained(tmp_path / "run")
    helpers = trained(tmp_path / "run" / "policies" / "helpers", 2, lags={"2": 5}, pauses_s=())
    summary = build_summary(RunResult(main, TOTALS, num_engines=2, seed=7, policies={"helpers": helpers}))
    assert (summary["steps"], summary["max_staleness"], summary["seed"], summary["lives"]) == (3, 4, 7, 2)
    assert summary["staleness"] == {"max": 1, "mean": 0.25, "histogram": {"0": 30, "1": 10}}
    assert summary["groups"] == {"admitted": 9, "trained": 6, "dropped": {"no_signal": 1}, "failed": {}}
    assert summary["tokens"] == {"generated": 500, "trained": 40}
    assert summary["sync_pause_s"] == {"mean": pytest.approx(0.2), "max": 0.3}
    assert (summary["final_reward"], summary["checkpoint"]) == (0.2, "checkpoints/step-000003")
    assert summary["policies"]["helpers"]["staleness"] == {"max": 2, "mean": 2.0, "histogram": {"2": 5}}
    assert summary["policies"]["helpers"]["sync_pause_s"] == {"mean": 0.0, "max": 0.0}
    assert summary["policies"]["helpers"]["checkpoint"] == "checkpoints/step-000002"


def test_shares_of_busy_time_are_of_the_time_of_training_and_of_all_engines(tmp_path):
    summary = build_summary(RunResult(trained(tmp_path), TOTALS, num_engines=2, seed=0))
    assert summary["busy"] == {"engine": 30.0 / 20.0 / 2, "trainer": (8.0 + 2.0) / 20.0}
    assert (summary["wall_s"], summary["train_wall_s"], summary["restarts"]) == (50.0, 20.0, {"env": 1})


def test_an_evaluation_counts_success_where_there_is_a_verdict_and_else_reward(tmp_path):
    record = {"version": 2, "mean": 0.5}
    result = RunResult(trained(tmp_path), TOTALS, 1, 0, eval_before=BEFORE, eval_after=AFTER, evals=[record])
    summary = build_summary(result)
    before, after = summary["eval_before"], summary["eval_after"]
    assert (before["mean"], before["ci_low"], before["ci_high"], before["reward"]) == (0.25, 0.1, 0.4, 0.25)
    assert (after["mean"], after["ci_low"], after["ci_high"], after["reward"]) == (0.5, 0.25, 0.75, 0.75)
    assert (after["failed"], after["truncated"]) == ({"environment": 1}, 2)
    assert summary["evals"] == [record]


def test_a_run_without_evaluations_has_none(tmp_path):
    summary = build_summary(RunResult(trained(tmp_path), TOTALS, 1, 0))
    assert (summary["eval_before"], summary["eval_after"], summary["evals"]) == (None, None, [])
