"""What computes lives, what neither answers nor gets on is hung, and the reason says which."""

import subprocess
import sys

import pytest

from asyncrl.liveness import BUSY_LIMIT_S, SUSPENDED, Liveness, described_state
from asyncrl.startup import PROGRESS_BYTES, Used
from tests.waiting import wait_until


def look(liveness, meter, start, end, cpu_per_s=0.0, bytes_per_s=0):
    """Look once a second; return when it was found hung and why, or the end and ""."""
    for now in range(start, end):
        if why := liveness.hung(float(now), meter):
            return now, why
        if meter is not None:
            meter.cpu += cpu_per_s
            meter.data += bytes_per_s
    return end, ""


def test_what_neither_answers_nor_gets_on_is_hung_after_the_limit():
    found = look(Liveness(60.0, 0.0), Used(cpu=500.0), 0, 1000)
    assert found == (
        61,
        "gave no sign of life for 60 s (no answer, no progress: 0.0 s of CPU time since its last answer 61 s ago)",
    )


@pytest.mark.parametrize(
    "used", [{"cpu_per_s": 1.0}, {"cpu_per_s": 0.02}, {"bytes_per_s": PROGRESS_BYTES // 20}]
)
def test_what_computes_or_moves_data_lives_for_minutes_without_an_answer(used):
    assert look(Liveness(60.0, 0.0), Used(), 0, 900, **used) == (900, "")


def test_what_only_stirs_is_hung():
    """A timer that wakes now and then is no progress."""
    assert look(Liveness(60.0, 0.0), Used(), 0, 1000, cpu_per_s=0.002)[0] == 61


def test_what_spins_for_ever_is_hung_in_the_end_and_what_moves_data_is_not():
    end = int(BUSY_LIMIT_S) + 1000
    now, why = look(Liveness(60.0, 0.0), Used(), 0, end, cpu_per_s=1.0)
    assert now == pytest.approx(BUSY_LIMIT_S, abs=6)
    assert why.startswith("has not answered for 1800 s, in which it computed for 17")
    assert look(Liveness(60.0, 0.0), Used(), 0, end, 1.0, PROGRESS_BYTES) == (end, "")


def test_the_limit_counts_from_the_last_progress_and_an_answer_forgets_all():
    liveness, meter = Liveness(60.0, 0.0), Used()
    assert look(liveness, meter, 0, 100, cpu_per_s=1.0) == (100, "")
    assert liveness.computes()
    assert look(liveness, meter, 100, 1000)[0] == pytest.approx(160, abs=6)
    liveness.answer(1000.0)
    assert not liveness.computes()
    assert look(liveness, meter, 1000, 2000)[0] == 1061


def test_another_meter_or_a_child_that_ended_is_no_progress():
    liveness = Liveness(60.0, 0.0)
    assert look(liveness, Used(cpu=1.0), 0, 30) == (30, "")
    assert look(liveness, Used(cpu=1000.0), 30, 1000)[0] == 61
    liveness, meter = Liveness(60.0, 0.0), Used(cpu=1000.0)
    look(liveness, meter, 0, 10)
    meter.cpu = 10.0
    assert look(liveness, meter, 10, 1000)[0] == 61
    liveness, meter = Liveness(60.0, 0.0), Used(cpu=1000.0)
    look(liveness, meter, 0, 10)
    meter.cpu = 10.0
    assert look(liveness, meter, 10, 1000, cpu_per_s=1.0) == (1000, "")


def test_a_suspended_process_is_hung_whatever_it_has_started_does():
    assert look(Liveness(60.0, 0.0), None, 0, 1000)[0] == 61


def test_the_state_of_a_process_that_explains_its_silence_is_named():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert described_state(child.pid) == ""
        child.send_signal(19)
        wait_until(lambda: described_state(child.pid) == SUSPENDED)
    finally:
        child.kill()
        child.wait()
    assert described_state(child.pid) == described_state(-1) == ""
