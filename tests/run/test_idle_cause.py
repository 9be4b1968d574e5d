"""Why an engine is idle is told from one sample of a run's activity."""

import pytest

from asyncrl.run.idle_cause import idle_cause


@pytest.mark.parametrize(
    ("engine", "buffer", "cause"),
    [
        ({"running": 3}, {"slots": 4}, ""),
        ({"waiting": 1}, {"slots": 4}, ""),
        ({"paused": True}, {"slots": 4}, "weights are swapped"),
        ({}, {"slots": 4, "in_flight": 2, "ready": 2}, "episodes wait for their environments"),
        ({}, {"slots": 4, "ready": 3, "taken": 1}, "the staleness limit admits no group"),
        ({}, {"slots": 4, "ready": 1, "pending": 5}, "no worker asks"),
        ({}, {"slots": 4, "ready": 1}, "no tasks"),
    ],
)
def test_an_idle_engine_has_a_cause(engine, buffer, cause):
    assert idle_cause(engine, buffer) == cause
