"""Limits on turns by the longest success of each task, around any curriculum."""

from asyncrl.extensions.curriculum.curricula import factory
from asyncrl.extensions.curriculum.curriculum import Outcome
from asyncrl.types import Task

POOL = [Task(f"t{i}", "gridworld", i) for i in range(3)]


def made(slack, name="window"):
    return factory(name, {}, 4, 0, turn_slack=slack)(POOL)


def outcome(place, turns, successes):
    return Outcome(place, tuple(successes), tuple(successes), turns=tuple(turns))


def test_the_limit_is_a_multiple_of_the_longest_success_of_the_task_rounded_up():
    curriculum = made(1.5)
    # Task 0: the longest of the two successes has 5 turns, and ceil(7.5) = 8. Task 1 never succeeded.
    curriculum.observe([outcome(0, [3, 5, 16], [1.0, 1.0, 0.0]), outcome(1, [16, 16, 16], [0.0] * 3)])
    assert [curriculum.limit(place) for place in range(3)] == [8, 0, 0]
    curriculum.observe([outcome(0, [2], [1.0])])
    assert curriculum.limit(0) == 8, "a shorter success does not lower it"
    curriculum.observe([outcome(0, [8], [0.5])])
    assert curriculum.limit(0) == 12
    assert {one.place: one.max_turns for one in curriculum.propose(3, 0)} == {0: 12, 1: 0, 2: 0}


def test_a_slack_of_one_is_the_longest_success_itself_and_no_rounding_error_adds_a_turn():
    for slack, limit in ((1.0, 10), (1.1, 11), (1.3, 13), (2.0, 20)):
        curriculum = made(slack)
        curriculum.observe([outcome(2, [10], [1.0])])
        assert curriculum.limit(2) == limit


def test_what_is_proposed_is_what_the_curriculum_itself_proposes():
    fitted, plain = made(1.5), made(0.0)
    for one in (fitted, plain):
        one.observe([outcome(0, [4], [1.0]), outcome(1, [4], [0.0])])
    mine, its = fitted.propose(3, 3), plain.propose(3, 3)
    assert [(p.place, p.rollouts, p.predicted) for p in mine] == [
        (p.place, p.rollouts, p.predicted) for p in its
    ]
    assert sorted(p.max_turns for p in mine) == [0, 0, 6]
    assert all(p.max_turns == 0 for p in its)


def test_a_state_brings_the_limits_and_the_beliefs_back():
    curriculum, other = made(2.0), made(2.0)
    curriculum.observe([outcome(1, [3, 7], [1.0, 0.0])])
    other.load_state(curriculum.state())
    assert other.state() == curriculum.state()
    assert other.propose(3, 3) == curriculum.propose(3, 3)
    assert other.limit(1) == 6


def test_outcomes_of_before_turns_were_noted_set_no_limit():
    curriculum = made(1.5)
    curriculum.observe([Outcome(0, (1.0,), (1.0,))])
    assert curriculum.limit(0) == 0
