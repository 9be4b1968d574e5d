"""The counts of prompts that engines compute for others, from the trajectories of a step."""

from dataclasses import replace

from asyncrl.train.prefills import prefill_metrics
from asyncrl.types import PREFILLS
from tests.buffer.factories import trajectory


def test_a_step_counts_the_prompts_of_its_trajectories_by_what_came_of_them():
    step = [
        replace(trajectory("t", 0), info={PREFILLS: {"handed": 2, "again": 1}}),
        replace(trajectory("t", 1), info={PREFILLS: {"handed": 1, "late": 3}}),
        trajectory("u", 0),
    ]
    assert prefill_metrics(step) == {
        "prefill/handed": 3.0, "prefill/again": 1.0, "prefill/failed": 0.0, "prefill/late": 3.0,
    }  # fmt: skip


def test_a_step_without_such_prompts_tells_nothing():
    assert prefill_metrics([trajectory("u", 0)]) == {}
