"""Rewards by name that compare answers: what each is worth, and of which rows nothing can be right."""

import asyncio

import pytest

from asyncrl.rewards import Completion, load_reward
from tests.extensions.answer_rewards.test_extraction import AS_QWEN3


def said(text, **row):
    return Completion([{"role": "user", "content": "How much?"}], text, "", row)


def scored(spec, *completions):
    return asyncio.run(load_reward(spec).score(completions))


def test_right_answers_as_qwen3_writes_them_are_worth_one():
    row = {"question": "30939 - 39753", "answer": "-8814"}
    assert [score.total for score in scored("math", *(said(text, **row) for text in AS_QWEN3))] == [1.0] * 8


@pytest.mark.parametrize(
    ("spec", "row", "text", "total", "extracted"),
    [
        ("math", {"answer": "She sells 9 * 2 = <<9*2=18>>18.\n#### 18"}, "The answer is $18.", 1.0, "$18"),
        ("math", {"solution": r"So $\boxed{\frac12}$."}, r"\boxed{0.5}", 1.0, "0.5"),
        ("math", {"answer": 18.0}, r"\boxed{18}", 1.0, "18"),
        ("math", {"answer": ["18", "eighteen"]}, r"\boxed{eighteen}", 1.0, "eighteen"),
        ("math", {"answer": "18"}, "<think>18", 0.0, None),
        ("exact", {"answer": "to  be"}, "<think>x</think> to be\n", 1.0, "to be"),
        ("exact", {"answer": "to be"}, "not to be", 0.0, "not to be"),
        ("exact", {"answer": "yes"}, "<answer>yes</answer> indeed", 1.0, "yes"),
        ("choice", {"answer": "B"}, "The answer is (B).", 1.0, "B"),
        ("choice", {"answer": 1, "choices": ["x", "y"]}, "I choose B", 1.0, "B"),
        ("choice", {"answer": "y", "choices": ["x", "y"]}, "B) y", 1.0, "B"),
        ("choice", {"answer": "y", "A": "x", "B": "y"}, "B", 1.0, "B"),
        ("choice", {"answer": 1, "option_a": "x", "option_b": "y"}, "The answer is A.", 0.0, "A"),
        ("choice", {"answer": "y", "choices": {"label": ["C", "D"], "text": ["x", "y"]}}, "D", 1.0, "D"),
        ("choice", {"answer": "B"}, "A or B", 0.0, None),
        # ARC has rows whose labels are numbers, which are shown as letters.
        ("choice", {"answer": "2", "choices": {"label": ["1", "2"], "text": ["x", "y"]}}, "(B)", 1.0, "B"),
        ("choice", {"answer": 2, "choices": {"label": ["1", "2"], "text": ["x", "y"]}}, "B", 1.0, "B"),
        # TriviaQA, SQuAD, Search-R1.
        ("exact", {"answer": {"value": "Big Ben", "aliases": ["The clock"]}}, "The clock", 1.0, "The clock"),
        ("exact", {"answer": {"text": ["Big Ben"], "answer_start": [3]}}, "Big Ben", 1.0, "Big Ben"),
        ("exact", {"golden_answers": ["Big Ben", "a clock"]}, "a clock", 1.0, "a clock"),
        ("math", {"answer": {"value": 3}}, "3", 1.0, "3"),
        (r"regex:(\w+)$", {"answer": ["ten", "10"]}, "it is 10", 1.0, "10"),
        ("regex:^yes", {}, "yes, indeed", 1.0, "yes"),
        (r"regex:(\d+)$", {"answer": "42"}, "41 or 42", 1.0, "42"),
        (r"regex:(\d+)$", {"answer": "42"}, "42 or 41", 0.0, "41"),
    ],
)
def test_built_in_rewards(spec, row, text, total, extracted):
    (score,) = scored(spec, said(text, **row))
    assert (score.total, score.extracted, score.success) == (total, extracted, bool(total))


@pytest.mark.parametrize(
    ("spec", "row", "why"),
    [
        ("math", {"question": "q"}, "no column answer"),
        ("math", {"answer": "nan"}, "the answer is 'nan'"),
        ("choice", {"answer": 7, "choices": ["x", "y"]}, "choice 7 of 2, counted from 0"),
        ("choice", {"answer": "neither"}, "no letter, number or text of a choice"),
        ("exact", {"answer": " "}, "the answer is empty"),
        (
            "exact",
            {"answer": {"a": 1, "b": 2}},
            "the answer is an object with the fields a, b; name one by data.answer",
        ),
        ("math", {"answer": {"value": ""}}, "the answer is an object with the fields value"),
        (r"regex:(\w+)", {"answer": []}, "the answer is empty"),
    ],
)
def test_a_row_to_which_nothing_can_be_right_is_told(spec, row, why):
    assert why in (load_reward(spec).check_row(row) or "")
