"""What a step's record says of its rewards."""

from dataclasses import replace

import pytest

from asyncrl.train.loop.step_record import component_means
from tests.train.factories import trajectory


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
