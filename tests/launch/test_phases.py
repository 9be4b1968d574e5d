"""What is told while no step ends."""

import pytest

from asyncrl.launch.reports import phases
from asyncrl.launch.reports.phases import TrainingPhases


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [1000.0]
    monkeypatch.setattr("asyncrl.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(phases, "draws_panels", lambda stream: False)
    return now


def test_the_first_batch_is_counted_while_it_fills_and_its_end_names_the_time_alone(clock, capsys):
    told = TrainingPhases(num_steps=3, groups_per_step=4)
    clock[0] += 10
    told.tick({"ready": 1, "taken": 0, "in_flight": 9}, None)
    clock[0] += 64
    # The step was trained between two looks, so the groups that came last were never counted.
    told.tick({"ready": 2, "taken": 0, "in_flight": 8}, 1)
    assert capsys.readouterr().err.splitlines() == [
        "first batch: 1 of 4 groups, since 10 s, 9 running",
        "first batch: in 74 s",
    ]


def test_the_last_checkpoint_is_waited_for_aloud(clock, capsys):
    told = TrainingPhases(num_steps=1, groups_per_step=4)
    told.tick({"ready": 4, "taken": 4, "in_flight": 0}, 1)
    clock[0] += 7
    told.tick({"ready": 0, "taken": 0, "in_flight": 0}, 1)
    told.end()
    assert capsys.readouterr().err.splitlines() == [
        "last checkpoint, and the end of the trainer: 7 s",
        "last checkpoint, and the end of the trainer: in 7 s",
    ]
