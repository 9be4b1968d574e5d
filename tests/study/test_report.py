"""A study's page, from records."""

import numpy as np
import pytest

from asyncrl.study.records import StudyRecords, value_of
from asyncrl.study.report import mean_curve, report, table, write_report
from asyncrl.study.runner import chosen, compared_runs
from asyncrl.study.study_file import Study, study_run, tuning_runs

STUDY = {
    "title": "Two methods",
    "claim": "dapo is better.",
    "recipe": "gridworld_grpo",
    "seeds": 2,
    "methods": {"grpo": {"algo": {"preset": "grpo"}}, "dapo": {"algo": {"preset": "dapo"}}},
    "finding": "So it is.",
}


def record_of(run, *successes, **more):
    places = [
        {"version": i, "tokens": 100 * i, "rollouts": 10 * i, "seconds": 2.0 * i, "success": success}
        for i, success in enumerate(successes)
    ]
    steps = [{"version": 1, "tokens": 100, "rollouts": 10, "seconds": 2.0, "ess": 0.5, "reward": 0.1}]
    return {"key": run.key, "wall_s": 1.0, "held_out": places, "steps": steps, "tasks": 8,
            "staleness_mean": 0.25, "staleness_max": 1, **more}  # fmt: skip


@pytest.fixture
def records(tmp_path):
    return StudyRecords(tmp_path / "study.jsonl")


def test_the_table_compares_each_method_with_the_baseline_over_shared_seeds(records):
    study = Study.model_validate(STUDY)
    after = {"grpo": (0.5, 0.6), "dapo": (0.7, 0.9)}
    for run in compared_runs(study, records):
        records.append(record_of(run, 0.2, after[run.method][run.seed]))
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    header, _, grpo, dapo = table(study, made).splitlines()
    assert header.startswith("| method | before | held-out success after training | less `grpo`, paired |")
    assert [cell.strip() for cell in grpo.split("|")[1:-1]] == [
        "`grpo`", "0.200", "0.550 [-0.085, 1.185], 0.500 to 0.600", "", "", "0.25", "0.50", "2", "2", "0",
    ]  # fmt: skip
    assert [cell.strip() for cell in dapo.split("|")[1:-1]] == [
        "`dapo`", "0.200", "0.800 [-0.471, 2.071], 0.700 to 0.900", "+0.250 [-0.385, +0.885]", "0.500",
        "0.25", "0.50", "2", "2", "0",
    ]  # fmt: skip


def test_where_effort_is_compared_a_run_that_never_reaches_the_target_is_counted(records):
    study = Study.model_validate(STUDY | {"measure": "rollouts", "target": 0.8})
    ends = {
        ("grpo", 0): (0.1, 0.5, 0.8),
        ("grpo", 1): (0.1, 0.2, 0.3),
        ("dapo", 0): (0.1, 0.9),
        ("dapo", 1): (0.8,),
    }
    for run in compared_runs(study, records):
        records.append(record_of(run, *ends[run.method, run.seed]))
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    _, _, grpo, dapo = table(study, made).splitlines()
    assert "| 20, 20 to 20 | 1 of 2 | 0.550 |  |  |" in grpo
    assert "| 5 [-59, 69], 0 to 10 | 2 of 2 | 0.850 | +0.300 [-2.241, +2.841] | -10 | 1.000 |" in dapo


def test_a_failed_run_is_counted_and_its_values_are_left_out(records):
    study = Study.model_validate(STUDY)
    for run in compared_runs(study, records):
        failed = (run.method, run.seed) == ("dapo", 1)
        records.append(
            {"key": run.key, "wall_s": 1.0, "error": "lost"} if failed else record_of(run, 0.2, 0.4)
        )
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    assert table(study, made).splitlines()[-1].endswith("| 2 | 1 | 1 |")
    assert "3 of 4 runs have ended so far." in report(study, made)


def test_each_method_is_judged_with_the_value_that_did_best_in_its_tuning(records):
    study = Study.model_validate(STUDY | {"tuning": {"values": {"train.learning_rate": [0.1, 0.2]}}})
    assert compared_runs(study, records) == []
    best = {"grpo": 0.1, "dapo": 0.2}
    for run in tuning_runs(study):
        records.append(
            record_of(run, 0.2, 0.9 if run.tuned["train.learning_rate"] == best[run.method] else 0.4)
        )
    assert {m: chosen(study, records, m, "")["train.learning_rate"] for m in study.methods} == best
    assert {(run.method, run.tuned["train.learning_rate"]) for run in compared_runs(study, records)} == {
        ("grpo", 0.1),
        ("dapo", 0.2),
    }


def test_a_tuning_towards_a_target_prefers_who_reached_it_and_then_who_came_nearer(records):
    rates = [0.1, 0.2, 0.3, 0.4]
    study = Study.model_validate(
        STUDY | {"measure": "tokens", "target": 0.8, "tuning": {"values": {"train.learning_rate": rates}}}
    )
    ends = {0.1: (0.1, 0.7), 0.2: (0.1, 0.6), 0.3: (0.1, 0.8), 0.4: (0.1, 0.2, 0.9)}
    runs = [run for run in tuning_runs(study) if run.method == "grpo"]
    order = []
    for _ in range(4):
        for run in runs:
            rate = run.tuned["train.learning_rate"]
            lost = {"key": run.key, "wall_s": 1.0, "error": "lost"}
            records.append(lost if rate in order else record_of(run, *ends[rate]))
        order.append(chosen(study, records, "grpo", "")["train.learning_rate"])
    assert order == [0.3, 0.4, 0.1, 0.2]


def test_the_page_says_claim_settings_curves_and_finding_and_a_reader_of_records_finds_them_again(
    records, tmp_path
):
    study = Study.model_validate(STUDY)
    for run in compared_runs(study, records):
        records.append(record_of(run, 0.2, 0.4))
    again = StudyRecords(records.path)
    assert all(again.done(run) for run in compared_runs(study, again))
    text = write_report(study, again, tmp_path / "study.md", tmp_path / "study.png")
    assert (tmp_path / "study.md").read_text() == text
    assert (tmp_path / "study.png").stat().st_size > 1000
    for said in ("# Two methods", "**Claim.** dapo is better.", 'algo.preset = "dapo"  # method dapo',
                 "](study.png)", "**Finding.** So it is."):  # fmt: skip
        assert said in text
    assert "so far" not in text


def test_a_mean_curve_is_linear_between_evaluations_and_ends_with_the_shortest():
    curves = [
        [{"tokens": 0, "success": 0.0}, {"tokens": 100, "success": 1.0}],
        [{"tokens": 0, "success": 0.5}, {"tokens": 50, "success": 0.5}],
    ]
    x, low, mean, high = mean_curve(curves, "tokens")
    assert (x[0], x[-1]) == (0.0, 50.0)
    assert (low[-1], mean[-1], high[-1]) == (0.5, 0.5, 0.5)
    assert np.allclose(mean, 0.25 + x / 200)


def test_effort_is_that_of_the_first_evaluation_at_the_target():
    study = Study.model_validate(STUDY)
    record = record_of(study_run(study, "grpo", "", 0, {}), 0.1, 0.8, 0.3)
    assert [value_of(record, unit, 0.8) for unit in ("rollouts", "tokens", "seconds")] == [10.0, 100.0, 2.0]
    assert value_of(record, "tokens", 0.9) is None
    assert value_of(record, "success", 0.9) == 0.3
