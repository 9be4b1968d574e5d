"""Countdown: what an expression is worth, and that the grader evaluates nothing."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.env.protocol import Action
from asyncrl.envs.countdown.env import Countdown, extract
from asyncrl.envs.countdown.reward import judge, value_of
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task


def make(seed=0, **config):
    return Countdown(Task("t", "countdown", seed), **config)


@pytest.mark.parametrize(
    ("expression", "value", "numbers"),
    [
        ("3 * (4 + 5)", 27, [3, 4, 5]),
        ("1 / 3 + 1 / 6", Fraction(1, 2), [1, 3, 1, 6]),
        ("7 - 9", -2, [7, 9]),
        ("8", 8, [8]),
    ],
)
def test_expressions_are_worth_exactly_what_arithmetic_says(expression, value, numbers):
    assert value_of(expression) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    [
        "2 ** 9",
        "__import__('os')",
        "a + 1",
        "1.5 + 2",
        "-3 + 4",
        "[1][0]",
        "True + 1",
        "max(1, 2)",
        "",
        "1 +",
    ],
)
def test_anything_but_plain_arithmetic_is_refused(text):
    with pytest.raises(ValueError, match=r"only whole numbers|not an expression"):
        value_of(text)


def test_division_by_zero_and_endless_text_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="divides by zero"):
        value_of("4 / (3 - 3)")
    with pytest.raises(ValueError, match="at most 200 characters"):
        value_of("(" * 201)


@given(st.text(max_size=250))
def test_no_text_makes_the_grader_fail(text):
    assert isinstance(judge(text, [1, 2], 3, False), str)


def test_the_judge_says_what_is_wrong():
    assert judge("3 * 4", [3, 4, 5], 12, False) == ""
    assert judge("3 * 4", [3, 4, 5], 12, True) == "5 is not used"
    assert judge("3 * 3", [3, 4], 9, False) == "3 is not among the numbers left"
    assert judge("3 + 4", [3, 4], 12, False) == "that makes 7"


def test_a_wrong_answer_is_answered_and_the_next_may_be_right():
    env = make(level=3, attempts=2)
    first = env.step(Action("1 +"))
    assert (first.done, first.messages[0]["content"]) == (False, "that is not an expression")
    last = env.step(Action(f"let me see\n<answer>{env.problem.solution}</answer>"))
    assert (last.reward, last.done, last.success) == (1.0, True, True)


def test_numbers_are_as_large_as_asked_for_or_as_the_level_has_them():
    drawn = {large: [make(seed, largest=large).problem for seed in range(200)] for large in (0, 50)}
    most = {large: max(max(problem.numbers) for problem in problems) for large, problems in drawn.items()}
    assert (most[0], 45 < most[50] <= 50) == (9, True)
    # Few problems have numbers to 9, so that many seeds draw the same one.
    assert len({problem.key for problem in drawn[0]}) < 120 < 180 < len({p.key for p in drawn[50]})


def test_the_attempts_run_out():
    env = make(attempts=1)
    step = env.step(Action("nothing"))
    assert (step.reward, step.done, step.success) == (0.0, True, False)


def test_the_answer_is_the_last_line_before_the_equals_sign():
    assert extract("first\n 3 * 8 = 24 ") == "3 * 8"
    assert extract("<answer>1 + 2</answer> then <answer>2 + 2</answer>") == "2 + 2"
    assert extract("  ") == ""


def test_levels_have_more_numbers_and_wrong_ones_are_refused():
    assert [len(make(level=level).problem.numbers) for level in (1, 2, 3, 4)] == [2, 3, 4, 6]
    with pytest.raises(ValueError, match=r"level: must be one of 1, 2, 3, 4, or 0 .* got 5"):
        make(level=5)
    with pytest.raises(ValueError, match="attempts: must be an integer from 1 to 16, got 0"):
        make(attempts=0)
    with pytest.raises(ValueError, match="largest: must be an integer from 0 to 100, got 101"):
        make(largest=101)
    assert len(Countdown(Task("t", "countdown", 0, data={"level": 4})).problem.numbers) == 6


def test_every_number_is_in_the_solution_when_all_must_be_used():
    for seed in range(20):
        env = make(seed, level=3, use_all=True)
        assert env.step(Action(env.problem.solution)).reward == 1.0
        assert sorted(value_of(env.problem.solution)[1]) == sorted(env.problem.numbers)


def test_no_problem_stands_in_both_splits():
    train = {make(seed, level=2).problem_key() for seed in range(0, 600, 2)}
    heldout = {make(seed, level=2).problem_key() for seed in range(1, 601, 2)}
    assert len(train) > 200 and not train & heldout


def test_countdown_passes_every_check():
    assert [f for f in check_env("countdown") if not f.ok] == []
