"""A worker that comes into quarantine is named, and a run that nobody else works for ends with the reason."""

from asyncrl.launch.quarantine import ALONE_S, QuarantineReport

WHY = "log-probabilities differ by 0.3 nats"
IDLE = {"in_flight": 0, "waiting_for_lease": 0, "plan_closed": False, "pending": 8}


def test_a_quarantine_is_told_once_and_the_last_one_is_told_as_such():
    report = QuarantineReport(["rollout-0", "rollout-1"])
    assert report.news({}) == []
    first = {"rollout-1": WHY}
    assert report.news(first) == [f"rollout-1 is quarantined and contributes no more: {WHY}"]
    assert report.news(first) == []
    assert report.news(first | {"rollout-0": "made up"}) == [
        "rollout-0 is quarantined and contributes no more: made up",
        "no worker of this run may contribute any more; only one that joins can keep it going",
    ]


def test_a_run_without_a_worker_ends_promptly_and_names_the_reason():
    report = QuarantineReport(["rollout-0"])
    reasons = {"rollout-0": WHY}
    assert report.hopeless(reasons, IDLE, 100.0) == ""
    assert report.hopeless(reasons, IDLE, 100.0 + ALONE_S - 1) == ""
    told = report.hopeless(reasons, IDLE, 100.0 + ALONE_S)
    assert f"no worker is left that may contribute: all are quarantined (rollout-0: {WHY})" in told


def test_a_worker_that_has_joined_or_is_not_quarantined_keeps_the_run_going():
    report = QuarantineReport(["rollout-0"])
    reasons = {"rollout-0": WHY}
    for now in range(0, 100, 5):
        assert report.hopeless(reasons, IDLE | {"waiting_for_lease": 1}, float(now)) == ""
        assert report.hopeless(reasons, IDLE | {"in_flight": 2}, float(now)) == ""
        assert report.hopeless({"guest": WHY}, IDLE, float(now)) == ""
    assert report.hopeless(reasons, IDLE, 200.0) == "", "the time begins when nobody works"


def test_a_plan_of_which_nothing_is_left_is_left_to_its_trainer():
    report, reasons = QuarantineReport(["rollout-0"]), {"rollout-0": WHY}
    for now in (0.0, 2 * ALONE_S):
        assert report.hopeless(reasons, IDLE | {"plan_closed": True, "pending": 0}, now) == ""
    for now in (0.0, 2 * ALONE_S):
        told = report.hopeless(reasons, IDLE | {"plan_closed": True, "pending": 1}, now)
    assert told
