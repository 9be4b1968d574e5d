"""The number in flight follows throughput, on a queue whose capacity is known."""

from statistics import mode

import pytest

from asyncrl.buffer.automatic_admission import FIRST_BATCHES, AutomaticAdmission

PER_STEP = 8
TOKENS = 100


def play(admission, batches, seconds_of, current=None, waited=True, left=0):
    """Return the over-provision after each batch; `seconds_of` says how long one takes."""
    current, now_s, found = admission.initial() if current is None else current, 0.0, []
    for _ in range(batches):
        now_s += seconds_of(PER_STEP + current)
        current = admission.after_batch(current, waited, left, TOKENS, now_s)
        found.append(current)
    return found


def saturated_at(groups):
    """A batch takes less the more is in flight, until `groups` are."""
    return lambda in_flight: 100.0 / min(in_flight, groups)


def test_it_starts_with_one_more_batch_where_the_staleness_limit_admits_it():
    assert [AutomaticAdmission(most, PER_STEP).initial() for most in (0, 4, 8, 64)] == [0, 4, 8, 8]
    assert FIRST_BATCHES == 1


def test_it_rises_to_the_maximum_while_more_in_flight_is_faster():
    assert play(AutomaticAdmission(120, PER_STEP), 100, saturated_at(10_000))[-1] == 120


def test_it_goes_back_and_stays_where_more_in_flight_is_no_faster():
    found = play(AutomaticAdmission(120, PER_STEP), 39, saturated_at(16))
    assert found[:4] == [8, 8, 12, 16]
    assert found[4:10] == [16] * 6
    assert found[10:] == [8] * 29


def test_a_moment_in_which_groups_wait_does_not_make_it_try_again():
    admission = AutomaticAdmission(120, PER_STEP)
    assert play(admission, 11, saturated_at(16))[-1] == 8
    assert play(admission, 1, saturated_at(16), current=8, waited=False, left=9) == [6]
    assert play(admission, 25, saturated_at(16), current=6) == [6] * 25


def test_it_ends_a_trial_when_groups_wait_for_the_trainer():
    admission = AutomaticAdmission(120, PER_STEP)
    assert play(admission, 6, saturated_at(10_000))[-1] == 16
    assert play(admission, 1, saturated_at(10_000), current=16, waited=False, left=9) == [14]
    assert play(admission, 2, saturated_at(10_000), current=14) == [18, 22]


def test_it_tries_again_after_a_while():
    found = play(AutomaticAdmission(120, PER_STEP), 50, saturated_at(16))
    assert found[38:42] == [8, 12, 16, 16]


def test_it_rises_at_once_when_the_trainer_gets_faster_than_generation():
    admission = AutomaticAdmission(120, PER_STEP)
    assert play(admission, 20, saturated_at(32), waited=False)[-1] == 8
    assert play(admission, 3, saturated_at(10_000), current=8) == [12, 16, 16]


@pytest.mark.parametrize("capacity", [48, 72, 100])
def test_it_ends_within_one_raise_of_the_capacity(capacity):
    found = play(AutomaticAdmission(400, PER_STEP), 200, saturated_at(capacity))
    assert capacity / 1.5 <= mode(found[-100:]) + PER_STEP <= capacity * 1.5


def test_it_does_not_rise_while_the_trainer_does_not_wait():
    assert set(play(AutomaticAdmission(120, PER_STEP), 30, saturated_at(10_000), waited=False)) == {8}


def test_a_trainer_that_waits_for_one_slow_group_does_not_raise_it():
    assert set(play(AutomaticAdmission(120, PER_STEP), 30, saturated_at(10_000), left=9)) == {8}


def test_it_falls_by_a_quarter_of_a_batch_while_more_than_one_waits_for_the_trainer():
    assert play(AutomaticAdmission(120, PER_STEP), 4, saturated_at(32), waited=False, left=9) == [6, 4, 2, 0]
    assert play(AutomaticAdmission(120, PER_STEP), 2, saturated_at(32), current=1, waited=False, left=9) == [
        0,
        0,
    ]


def test_it_never_exceeds_the_maximum():
    admission = AutomaticAdmission(16, PER_STEP)
    assert admission.after_batch(24, True, 0, TOKENS, 1.0) == 16
    assert max(play(admission, 40, saturated_at(10_000))) == 16
