"""Groups that are dropped one after the other are told of, step by step, with what to do about it."""

import pytest

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.launch.reports.dropped import DroppedReport
from asyncrl.types import Task
from tests.buffer.factories import group

STEP = 2
SLOTS = 4 * STEP
"""Groups dropped in one step before it is said."""


@pytest.fixture
def ledger():
    made = Ledger(":memory:", LedgerSettings(STEP, 1, 2))
    made.add_tasks([Task(f"t{number}", "x") for number in range(400)])
    return made


@pytest.fixture
def report(ledger):
    made = DroppedReport(STEP)
    assert made.new_messages(ledger.stats()) == []
    return made


def put(ledger, count, rewards):
    for _ in range(count):
        ledger.put(group(ledger.lease("w"), rewards=rewards))


def train_a_step(ledger):
    put(ledger, STEP, (0.0, 1.0))
    step = ledger.stats()["version"]
    assert len(ledger.take(step).groups) == STEP
    ledger.commit(step + 1)


def test_nothing_is_said_of_a_share_of_groups_that_every_step_may_drop(ledger, report):
    put(ledger, SLOTS - 1, (0.25, 0.25))
    assert report.new_messages(ledger.stats()) == []
    train_a_step(ledger)
    assert report.new_messages(ledger.stats()) == []
    put(ledger, SLOTS - 1, (0.25, 0.25))
    assert report.new_messages(ledger.stats()) == [], "each step is counted by itself"


def test_a_step_that_waits_through_many_is_told_once_with_what_to_do(ledger, report):
    train_a_step(ledger)
    assert report.new_messages(ledger.stats()) == []
    put(ledger, 1, (0.0, 1.0))
    put(ledger, SLOTS, (0.25, 0.25))
    (line,) = report.new_messages(ledger.stats())
    assert line.startswith(
        f"step 1 waits for its batch: {SLOTS} groups were dropped meanwhile (no_signal {SLOTS}; mean reward 0.250), "
        "1 of 2 are ready\n    -> all episodes of such a group earned the same"
    )
    assert report.new_messages(ledger.stats()) == []


def test_steps_that_are_alike_are_told_ever_more_seldom(ledger, report):
    told = []
    for step in range(9):
        put(ledger, SLOTS, (0.0, 0.0))
        told += [step for _ in report.new_messages(ledger.stats())]
        train_a_step(ledger)
        report.new_messages(ledger.stats())
    assert told == [0, 1, 2, 4, 8]


def test_the_reasons_are_named_by_how_often_and_the_first_is_advised_on(ledger, report):
    put(ledger, SLOTS, (1.0, 1.0))
    counts = ledger.stats()
    counts["dropped_by_reason"] = {"no_signal": 3, "too_long": SLOTS - 3}
    (line,) = report.new_messages(counts)
    assert f"(too_long {SLOTS - 3}, no_signal 3; mean reward 1.000)" in line
    assert line.endswith("or raise engine.max_model_len")


def test_tasks_that_the_end_of_the_plan_leaves_unplayed_are_none_of_them(ledger, report):
    train_a_step(ledger)
    assert report.new_messages(ledger.stats()) == []
    ledger.close_plan(abandon=True)
    counts = ledger.stats()
    assert counts["dropped_by_reason"]["abandoned"] > SLOTS
    assert report.new_messages(counts) == []
