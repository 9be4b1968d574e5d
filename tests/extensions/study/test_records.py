"""What a record keeps of a finished run."""

import json

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.study.records import measured

SUMMARY = {
    "eval_before": {"success": 0.25},
    "eval_after": {"success": 0.75, "tasks": 8},
    "staleness": {"mean": 0.5, "max": 1},
}


@pytest.fixture(autouse=True)
def no_ledger(monkeypatch):
    """These folders have no ledger, of which a record keeps what curricula predicted."""
    monkeypatch.setattr("asyncrl.extensions.study.records.predictions", lambda path: [])


def run_folder(folder):
    """A run of three steps, whose further policy has numbers of the first and the last."""
    times = dict.fromkeys(("time/wait_s", "time/train_s", "time/publish_s"), 1.0)
    counts = {"buffer/episodes": 8, "buffer/tokens_generated": 80}
    steps = [{"step": n, "entropy": 0.1 * n, **times, **counts} for n in (1, 2, 3)]
    others = [{"step": 1, "entropy": 0.5}, {"step": 3, "entropy": 0.75}]
    (folder / "policies" / "verifier").mkdir(parents=True)
    for place, rows in ((folder, steps), (folder / "policies" / "verifier", others)):
        (place / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


def test_a_metric_of_a_further_policy_is_kept_of_the_steps_that_have_it(tmp_path):
    name = "policies/verifier/entropy"
    steps = measured(run_folder(tmp_path), SUMMARY, name)["steps"]
    assert [step.get(name) for step in steps] == [0.5, None, 0.75]


def test_a_metric_of_the_recipes_own_policy_is_that_policys(tmp_path):
    steps = measured(run_folder(tmp_path), SUMMARY, "entropy")["steps"]
    assert [step["entropy"] for step in steps] == pytest.approx([0.1, 0.2, 0.3])


def test_a_policy_that_the_run_has_not_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"'policies/judge/entropy' is of policy 'judge', which the run has not"
    ):
        measured(run_folder(tmp_path), SUMMARY, "policies/judge/entropy")
