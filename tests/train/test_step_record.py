"""What a step's record says of its rewards."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from asyncrl.train.loop.step_record import component_means
from asyncrl.train.step.step_batch import build_step_batch
from tests.train.factories import batch_of_groups, trajectory
from tests.train.one_step import Learner, make_engine
from tests.train.scripted_run import Scripted, groups_at, make_trainer


def test_a_components_mean_is_over_the_trajectories_that_have_it():
    rows = [
        replace(trajectory(index=i), components=one)
        for i, one in enumerate(({"a": 1.0}, {"a": 0.0, "b": 0.5}, {}))
    ]
    assert component_means(rows) == {"component/a": 0.5, "component/b": 0.5}


def test_not_more_components_are_told_than_anybody_reads():
    many = replace(trajectory(), components={f"c{n:03}": float(n) for n in range(100)})
    found = component_means([many])
    assert len(found) == 64
    assert found["component/c063"] == pytest.approx(63.0)


def test_every_name_that_is_compared_with_other_frameworks_is_logged_by_a_step(tiny_model):
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    table = page.split("## Names that other frameworks use", 1)[1].split("\n## ", 1)[0]
    told = set(re.findall(r"^\|[^|]+\| `([^`]+)` \|", table, re.MULTILINE))
    assert len(told) == len(re.findall(r"^\| (?!what|---)", table, re.MULTILINE))
    logged = []
    script = Scripted([groups_at(0)])
    make_trainer(make_engine(tiny_model), script, 1, on_step=lambda _, metrics: logged.extend(metrics)).run()
    asked = {"preset": "grpo", "kl": {"coef": 0.1}, "entropy_coef": 0.01}
    report = Learner(tiny_model, asked).step(build_step_batch(batch_of_groups(), 0, 0), micro_batch_tokens=60)
    assert {"reference_kl", "entropy"} <= set(report.metrics)
    assert told - {"reference_kl", "entropy"} <= set(logged)
