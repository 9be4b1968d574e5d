"""A worker that comes into quarantine is named, and a run that nobody else works for ends with the reason."""

from asyncrl.launch.reports.quarantine import ALONE_S, QuarantineReport

WHY = "log-probabilities differ by 0.3 nats"
IDLE = {"in_flight": 0, "waiting_for_lease": 0, "plan_closed": False, "pending": 8}


def test_a_quarantine_is_reported_once_and_that_of_the_last_worker_as_such():
    report = QuarantineReport(["rollout-0", "rollout-1"])
    assert report.new_messages({}) == []
    first = {"rollout-1": WHY}
    assert report.new_messages(first) == [f"rollout-1 is quarantined and contributes no longer: {WHY}"]
    assert report.new_messages(first) == []
    assert report.new_messages(first | {"rollout-0": "made up"}) == [
        "rollout-0 is quarantined and contributes no longer: made up",
        "all workers of this run are quarantined; it can only continue if another one joins",
    ]
    # Another process of that name, which was readmitted.
    assert report.new_messages({"rollout-0": "made up"}) == []
    assert report.new_messages(first | {"rollout-0": "made up"})[0].startswith("rollout-1 is quarantined")


def test_a_run_without_a_worker_ends_promptly_and_names_the_reason():
    report = QuarantineReport(["rollout-0"])
    reasons = {"rollout-0": WHY}
    assert report.reason_to_stop(reasons, IDLE, 100.0) == ""
    assert report.reason_to_stop(reasons, IDLE, 100.0 + ALONE_S - 1) == ""
    told = report.reason_to_stop(reasons, IDLE, 100.0 + ALONE_S)
    assert f"no worker is left that may contribute: all are quarantined (rollout-0: {WHY})" in told


def test_a_worker_that_has_joined_or_is_not_quarantined_keeps_the_run_going():
    report = QuarantineReport(["rollout-0"])
    reasons = {"rollout-0": WHY}
    for now in range(0, 100, 5):
        assert report.reason_to_stop(reasons, IDLE | {"waiting_for_lease": 1}, float(now)) == ""
        assert report.reason_to_stop(reasons, IDLE | {"in_flight": 2}, float(now)) == ""
        assert report.reason_to_stop({"guest": WHY}, IDLE, float(now)) == ""
    assert report.reason_to_stop(reasons, IDLE, 200.0) == "", "the time begins when nobody works"


def test_a_plan_of_which_nothing_is_left_is_left_to_its_trainer():
    report, reasons = QuarantineReport(["rollout-0"]), {"rollout-0": WHY}
    for now in (0.0, 2 * ALONE_S):
        assert report.reason_to_stop(reasons, IDLE | {"plan_closed": True, "pending": 0}, now) == ""
    for now in (0.0, 2 * ALONE_S):
        told = report.reason_to_stop(reasons, IDLE | {"plan_closed": True, "pending": 1}, now)
    assert told
