"""Predicted and realised success of a study's groups."""

import pytest

from asyncrl.extensions.study.calibration import calibration_table, draw_calibration, reliability
from asyncrl.extensions.study.records import StudyRecords
from asyncrl.extensions.study.report import write_report
from asyncrl.extensions.study.runner import compared_runs
from asyncrl.extensions.study.study_file import Study
from tests.extensions.study.test_report import STUDY, record_of

PAIRS = {
    ("grpo", 0): [[0.25, 0.5], [0.25, 0.0]],
    ("grpo", 1): [[0.75, 1.0], [0.75, 0.5]],
}


@pytest.fixture
def study():
    return Study.model_validate(STUDY)


def made_of(study, records, pairs):
    for run in compared_runs(study, records):
        found = pairs.get((run.method, run.seed))
        records.append(record_of(run, 0.2, 0.4, **({"predictions": found} if found else {})))
    return [(run, records.find(run)) for run in compared_runs(study, records)]


def test_predictions_are_compared_over_all_seeds_with_those_of_a_constant(study, tmp_path):
    made = made_of(study, StudyRecords(tmp_path / "study.jsonl"), PAIRS)
    *_, grpo = calibration_table(study, made, "").splitlines()
    # Every prediction is off by 0.25; realised 0.5, 0, 1, 0.5 vary by 0.125 around 0.5.
    assert grpo == "| `grpo` | 4 | 0.500 | 0.500 | 0.062 | 0.125 | 0.000 |"


def test_each_tenth_of_predictions_has_its_mean(study):
    pairs = [[0.21, 0.5], [0.29, 0.0], [1.0, 1.0]]
    assert reliability(pairs) == [(2, pytest.approx(0.25), 0.25), (1, 1.0, 1.0)]


def test_the_page_of_a_study_without_predictions_says_nothing_of_them(study, tmp_path):
    records = StudyRecords(tmp_path / "study.jsonl")
    made = made_of(study, records, {})
    assert calibration_table(study, made, "") == ""
    assert not draw_calibration(study, made, tmp_path / "none.png")
    assert "predicted" not in write_report(study, records, tmp_path / "study.md", tmp_path / "study.png")
    assert not (tmp_path / "study-calibration.png").exists()


def test_the_page_shows_table_and_figure_of_what_was_predicted(study, tmp_path):
    records = StudyRecords(tmp_path / "study.jsonl")
    made_of(study, records, {("grpo", 0): [[0.25, 0.5]] * 5})
    text = write_report(study, records, tmp_path / "study.md", tmp_path / "study.png")
    assert "| `grpo` | 5 | 0.250 | 0.500 | 0.062 | 0.000 | 0.250 |" in text
    assert "](study-calibration.png)" in text
    assert (tmp_path / "study-calibration.png").stat().st_size > 1000
