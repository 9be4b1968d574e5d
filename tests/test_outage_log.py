"""An outage is a line when it begins and one when it is over, with a count."""

import errno
import logging

import pytest

from asyncrl import outage_log
from asyncrl.errors import InputError, StorageError
from asyncrl.outage_log import EVERY_S, OutageLog

LOG = logging.getLogger("asyncrl.test")


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(outage_log, "now_s", lambda: now[0])
    return now


def told(caplog):
    return [record.getMessage() for record in caplog.records]


def test_many_calls_that_fail_together_are_two_lines(clock, caplog):
    outage = OutageLog(LOG, "no engine answers")
    for attempt in range(100):
        for _ in range(20):
            outage.failed(OSError("refused"), again=attempt > 0)
    clock[0] += 60.0
    for _ in range(20):
        outage.ended()
    assert told(caplog) == [
        "no engine answers: refused; trying again until that ends",
        "no engine answers: again after 60 s, in which 2000 attempts failed",
    ]


def test_an_outage_that_flickers_is_told_now_and_then_and_loses_no_count(clock, caplog):
    outage = OutageLog(LOG, "no leases")
    for _ in range(30):
        outage.failed(OSError("away"), again=False)
        clock[0] += 0.5
        outage.ended()
    assert len(told(caplog)) == 2 * 2
    clock[0] += EVERY_S
    outage.failed(OSError("away"), again=False)
    outage.ended(worked=False)
    counts = [int(line.split()[-3]) for line in told(caplog) if line.endswith("attempts failed")]
    assert sum(counts) == 31
    assert told(caplog)[-1].startswith("no leases: given up after 0 s")


def test_work_that_is_done_again_lives_through_what_the_machine_lacks_and_not_through_a_bug(clock, caplog):
    outages = OutageLog(LOG, "leases that end")
    for error in (
        OSError(errno.ENOSPC, "No space left"),
        StorageError("ledger: disk is full"),
        MemoryError(),
    ):
        with outages.lived_through():
            raise error
    clock[0] += 3.0
    for _ in range(2):
        with outages.lived_through():
            pass
    assert told(caplog) == [
        "leases that end: [Errno 28] No space left; trying again until that ends",
        "leases that end: again after 3 s, in which 3 attempts failed",
    ]
    for bug in (FileNotFoundError(errno.ENOENT, "No such file"), KeyError("lease"), InputError("no lease")):
        with pytest.raises(type(bug)), outages.lived_through():
            raise bug
