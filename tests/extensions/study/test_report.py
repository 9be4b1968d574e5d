"""A study's page, from records."""

import numpy as np
import pytest

from asyncrl.extensions.study.records import StudyRecords, value_of
from asyncrl.extensions.study.report import mean_curve, report, table, write_report
from asyncrl.extensions.study.runner import chosen, compared_runs
from asyncrl.extensions.study.study_file import Study, study_run, tuning_runs

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


def test_seconds_of_training_are_compared_where_the_study_asks_for_it(records):
    study = Study.model_validate(STUDY | {"compare_seconds": True})
    for run in compared_runs(study, records):
        record = record_of(run, 0.2, 0.5)
        record["steps"][-1]["seconds"] = {"grpo": (20.0, 80.0), "dapo": (10.0, 10.0)}[run.method][run.seed]
        records.append(record)
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    header, _, grpo, dapo = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table(study, made).splitlines()
    )
    place = header.index("times as fast, paired")
    assert header[place - 1 : place + 2] == ["seconds", "times as fast, paired", "seeds"]
    assert (grpo[place], dapo[place].split()[0]) == ("", "4.00")


def test_runs_that_started_from_other_weights_are_not_paired(records):
    study = Study.model_validate(STUDY | {"seeds": 3})
    after = {"grpo": (0.5, 0.6, 0.1), "dapo": (0.7, 0.9, 0.9)}
    starts = {"grpo": ("a", "a", "a"), "dapo": ("a", "a", "b")}
    for run in compared_runs(study, records):
        start = starts[run.method][run.seed]
        records.append(record_of(run, 0.2, after[run.method][run.seed], start=start))
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    dapo = [cell.strip() for cell in table(study, made).splitlines()[3].split("|")[1:-1]]
    assert dapo[3] == "+0.250 [-0.385, +0.885]"  # 0.2 and 0.3; the third seed would make it 0.433
    assert dapo[8] == "3"


def test_each_method_is_paired_by_its_own_runs_where_starts_differ(records):
    more = {"seeds": 2, "methods": STUDY["methods"] | {"gspo": {"algo": {"preset": "gspo"}}}}
    study = Study.model_validate(
        STUDY | more | {"compare_seconds": True, "measure": "rollouts", "target": 0.4}
    )
    for run in compared_runs(study, records):
        start = "other" if run.method == "gspo" else "a"
        records.append(record_of(run, 0.2, 0.5 if run.method == "grpo" else 0.7, start=start))
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    lines = table(study, made).splitlines()
    header, _, _, dapo, gspo = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    for name in ("success less `grpo`, paired", "times as fast, paired"):
        assert (bool(dapo[header.index(name)]), gspo[header.index(name)]) == (True, ""), name


def test_a_record_says_whose_runs_started_from_other_weights(records):
    study = Study.model_validate(STUDY)
    runs = {(run.method, run.seed): run for run in compared_runs(study, records)}
    for seed, start in ((0, "a"), (1, "b")):
        records.append(record_of(runs["grpo", seed], 0.2, 0.5, start=start))
    found = {seed: record_of(runs["dapo", seed], 0.2, 0.5, start="b") for seed in (0, 1)}
    assert {seed: records.apart(record) for seed, record in found.items()} == {0: ["grpo"], 1: []}


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


@pytest.mark.parametrize(
    ("measured", "value"),
    [
        ({"measure": "rollouts", "target": 0.8}, 10.0),
        ({"measure": "tokens", "target": 0.8}, 100.0),
        ({"measure": "seconds", "target": 0.8}, 2.0),
        ({"measure": "tokens", "target": 0.9}, None),
        ({"measure": "success"}, 0.3),
        ({"measure": "metric", "metric": "ess"}, 0.5),
        ({"measure": "metric", "metric": "entropy"}, None),
    ],
)
def test_what_is_compared_of_a_run(measured, value):
    study = Study.model_validate(STUDY | measured)
    record = record_of(study_run(study, "grpo", "", 0, {}), 0.1, 0.8, 0.3)
    assert value_of(record, study) == value


def test_a_metric_is_compared_by_its_mean_over_the_last_fifth_of_the_steps(records):
    study = Study.model_validate(STUDY | {"measure": "metric", "metric": "win_rate"})
    for run in compared_runs(study, records):
        rates = [0.0] * 8 + ([0.25, 0.5] if run.method == "grpo" else [0.5, 0.75])
        steps = [{"version": i + 1, "seconds": 1.0 * i, "win_rate": rate} for i, rate in enumerate(rates)]
        records.append(record_of(run, 0.1, 0.3, steps=steps))
    made = [(run, records.find(run)) for run in compared_runs(study, records)]
    header, _, grpo, dapo = table(study, made).splitlines()
    assert header.startswith(
        "| method | before | `win_rate`, last fifth of the steps | less `grpo`, paired |"
    )
    assert [cell.strip() for cell in grpo.split("|")[2:4]] == [
        "0.100",
        "0.375 [0.375, 0.375], 0.375 to 0.375",
    ]
    assert [cell.strip() for cell in dapo.split("|")[3:5]] == [
        "0.625 [0.625, 0.625], 0.625 to 0.625", "+0.250 [+0.250, +0.250]",
    ]  # fmt: skip


def test_the_tuning_takes_the_value_with_the_highest_metric(records):
    tuning = {"values": {"train.learning_rate": [1e-4, 2e-4, 3e-4]}}
    study = Study.model_validate(STUDY | {"measure": "metric", "metric": "win_rate", "tuning": tuning})
    for run in tuning_runs(study):
        rate = {1e-4: 0.5, 2e-4: 0.75, 3e-4: 0.25}[run.tuned["train.learning_rate"]]
        # Its success says otherwise.
        steps = [{"version": 1, "seconds": 1.0, "win_rate": rate}]
        records.append(record_of(run, 0.1, 1 - rate, steps=steps))
    assert chosen(study, records, "grpo", "") == {"train.learning_rate": 2e-4}


def test_a_run_for_another_metric_is_another_run(records):
    first = Study.model_validate(STUDY | {"measure": "metric", "metric": "ess"})
    for run in compared_runs(first, records):
        records.append(record_of(run, 0.1, 0.3))
    other = first.model_copy(update={"metric": "entropy"})
    assert all(records.done(run) for run in compared_runs(first, records))
    assert not any(records.done(run) for run in compared_runs(other, records))
