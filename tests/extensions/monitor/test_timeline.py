"""Spans of time, worked out by hand."""

import pytest

from asyncrl.extensions.monitor.timeline import (
    down_spans,
    environments_idle_cause,
    idle_causes,
    trainer_spans,
)


def test_a_step_is_waiting_then_training_then_publishing_up_to_its_record():
    steps = [{"step": 4, "time": 100.0, "time/wait_s": 6.0, "time/train_s": 3.0, "time/publish_s": 1.0}]
    assert trainer_spans(steps) == [
        {"what": "wait", "start": 90.0, "end": 96.0, "step": 4},
        {"what": "train", "start": 96.0, "end": 99.0, "step": 4},
        {"what": "publish", "start": 99.0, "end": 100.0, "step": 4},
    ]


def test_a_part_without_a_time_is_empty():
    spans = trainer_spans([{"step": 1, "time": 10.0, "time/wait_s": 2.0, "time/train_s": None}])
    assert [(span["start"], span["end"]) for span in spans] == [(8.0, 10.0), (10.0, 10.0), (10.0, 10.0)]


def test_a_process_was_down_until_it_served_again():
    restarts = [
        {"time": 50.0, "name": "engine-0", "why": "was killed by signal 9", "down_s": 12.5},
        {"time": 60.0, "name": "env", "why": "ended with exit code 1", "reason": "no space", "down_s": 1.0},
    ]
    assert down_spans(restarts) == [
        {"process": "engine-0", "start": 37.5, "end": 50.0, "why": "was killed by signal 9"},
        {"process": "env", "start": 59.0, "end": 60.0, "why": "no space"},
    ]


@pytest.mark.parametrize(
    ("now", "before", "cause"),
    [
        ({"sessions": 2, "stepping": 1, "steps": 5}, {"steps": 5}, ""),
        ({"sessions": 2, "stepping": 0, "steps": 6}, {"steps": 5}, ""),
        ({"sessions": 2, "stepping": 0, "steps": 5}, {"steps": 5}, "episodes wait for the policy"),
        ({"sessions": 0, "stepping": 0, "steps": 5}, {"steps": 5}, "no episode is played"),
    ],
)
def test_an_idle_environment_service_has_a_cause(now, before, cause):
    assert environments_idle_cause(now, before) == cause


def test_each_sample_says_who_idled_and_why():
    def sample(running, steps):
        service = {"sessions": 1, "stepping": 0, "steps": steps}
        return {
            "engines": {"engine-0": {"running": running}},
            "environments": {"env": service},
            "buffer": {"in_flight": 1},
        }

    engine, policy = "episodes wait for their environments", "episodes wait for the policy"
    assert idle_causes([sample(1, 4), sample(0, 4), sample(0, 7), {"engines": {}}]) == [
        {"engine-0": "", "env": policy},
        {"engine-0": engine, "env": policy},
        {"engine-0": engine, "env": ""},
        {},
    ]
