"""Where rows have their answers, by the columns of data sets."""

import pytest

from asyncrl.rewards.published import published_answer, published_answers


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"question": "q", "answer": "18"}, ["18"]),
        ({"answer": None, "solution": "x"}, ["x"]),
        ({"reward_model": {"ground_truth": "4"}}, ["4"]),
        ({"golden_answers": ["Big Ben", "a clock"]}, ["Big Ben", "a clock"]),
        ({"answer": {"value": "Big Ben", "aliases": ["The clock", "Big Ben"]}}, ["Big Ben", "The clock"]),
        ({"answer": {"text": ["Big Ben"], "answer_start": [3]}}, ["Big Ben"]),
    ],
)
def test_answers_are_found_in_the_columns_of_data_sets(row, answers):
    assert published_answers(row) == answers


def test_a_row_without_an_answer_says_what_was_looked_for_and_what_it_has():
    with pytest.raises(KeyError, match=r"no column answer, Answer, .*; the row has question, label_2"):
        published_answer({"question": "q", "label_2": 1})
