"""Failed episodes are told when they are news, and a run none of whose groups can be used has a reason to end."""

from dataclasses import replace

import pytest

from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.launch.reports.failures import FailureReport
from asyncrl.types import FailureClass, Group, Status, Task
from tests.buffer.factories import group

STEP = 2
TRACE = "environment 'x': step raised KeyError: 'a'\n  File \"env.py\", line 3, in step\n    self.seen['a']"


def fresh(ledger):
    """A report that has seen the counts of this moment."""
    report = FailureReport(STEP)
    assert report.new_messages(ledger.stats()) == []
    return report


def book(tasks=8):
    made = Ledger(":memory:", LedgerSettings(STEP, 1, 2))
    made.add_tasks([Task(f"t{number}", "x") for number in range(tasks)])
    return made


def failed(lease, episodes=2, failure=FailureClass.ENVIRONMENT, error=TRACE):
    """A group whose last `episodes` episodes failed."""
    whole = group(lease)
    kept = len(whole.trajectories) - episodes
    return replace(
        whole,
        trajectories=tuple(
            t
            if t.rollout < kept
            else replace(t, status=Status.FAILED, failure=failure, error=error, success=None)
            for t in whole.trajectories
        ),
    )


def put(ledger, **how):
    made = failed(ledger.lease("w"), **how)
    assert isinstance(made, Group)
    return ledger.put(made).outcome


def test_the_first_failure_is_reported_once_with_its_traceback():
    ledger = book()
    report = fresh(ledger)
    assert put(ledger) == "retried"
    first, rate = report.new_messages(ledger.stats())
    assert first == (
        "an episode failed (environment): environment 'x': step raised KeyError: 'a'\n"
        "      File \"env.py\", line 3, in step\n        self.seen['a']"
    )
    assert rate == "failed episodes: 2 of 2 (100%): environment 2"
    assert report.new_messages(ledger.stats()) == []


def test_the_share_of_failed_episodes_is_reported_again_when_their_number_has_doubled():
    ledger = book()
    report = fresh(ledger)
    put(ledger, episodes=1, failure=FailureClass.JUDGE, error="no score")
    assert report.new_messages(ledger.stats())[1:] == []
    put(ledger, episodes=1)
    assert report.new_messages(ledger.stats())[1:] == [
        "failed episodes: 2 of 4 (50%): environment 1, judge 1"
    ]
    put(ledger, episodes=1)
    assert report.new_messages(ledger.stats()) == []


def test_a_step_of_groups_that_the_environment_failed_is_hopeless():
    ledger = book()
    report = fresh(ledger)
    put(ledger)
    assert report.reason_to_stop(ledger.stats()) == ""
    put(ledger)
    assert report.reason_to_stop(ledger.stats()) == (
        f"none of the first 2 groups could be used: 4 of 4 episodes failed (environment); the first one: {TRACE}"
    )


def test_one_group_that_could_be_used_is_hope():
    ledger = book()
    report = fresh(ledger)
    ledger.put(group(ledger.lease("w")))
    for _ in range(3):
        put(ledger)
    assert report.reason_to_stop(ledger.stats()) == ""


def test_an_agents_failures_say_nothing_against_the_environment():
    ledger = book()
    report = fresh(ledger)
    for _ in range(2):
        assert put(ledger, failure=FailureClass.AGENT, error="gave up") == "dropped"
    assert report.new_messages(ledger.stats()) == []
    assert report.reason_to_stop(ledger.stats()) == ""


@pytest.mark.parametrize(("losses", "ends"), [(3, False), (6, True)])
def test_infrastructure_has_all_attempts_of_a_steps_tasks(losses, ends):
    ledger = book()
    report = fresh(ledger)
    for _ in range(losses):
        put(ledger, failure=FailureClass.INFRASTRUCTURE, error="the service is gone")
    told = report.reason_to_stop(ledger.stats())
    assert bool(told) is ends
    assert not ends or "12 of 12 episodes failed (infrastructure); the first one: the service is gone" in told


def test_a_plan_shorter_than_a_step_ends_when_all_its_tasks_are_set_aside():
    ledger = book(tasks=1)
    report = fresh(ledger)
    ledger.close_plan()
    for attempt in range(3):
        assert report.reason_to_stop(ledger.stats()) == "" or attempt == 2
        put(ledger, failure=FailureClass.INFRASTRUCTURE, error="gone")
    assert "none of the first 3 groups could be used" in report.reason_to_stop(ledger.stats())


def test_what_an_earlier_life_lost_says_nothing_about_this_one():
    ledger = book()
    for _ in range(2):
        put(ledger)
    report = fresh(ledger)
    assert report.reason_to_stop(ledger.stats()) == ""
    put(ledger, error="another place")
    first, rate = report.new_messages(ledger.stats())
    assert first == "an episode failed (environment): another place"
    assert rate == "failed episodes: 2 of 2 (100%): environment 2"
    assert report.reason_to_stop(ledger.stats()) == ""
    put(ledger, error="another place")
    assert "none of the first 2 groups could be used: 4 of 4 episodes" in report.reason_to_stop(
        ledger.stats()
    )
