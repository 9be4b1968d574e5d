"""Training data in evaluated tasks, repeated tasks and answers in questions, on texts that can be read."""

import pytest

from asyncrl.extensions.benchmarks.contamination import Question, contamination, row_text

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"


def found(questions, rows=(), **more):
    asked = {name: one if isinstance(one, Question) else Question(one) for name, one in questions.items()}
    return contamination(asked, [(f"row {n}", text) for n, text in enumerate(rows, 1)], **more)


def test_a_task_overlaps_where_it_shares_thirteen_words_in_a_row():
    twelve = " ".join(LONG.split()[:12])
    thirteen = "He said: " + " ".join(LONG.split()[1:14]).upper() + "!"
    assert found({"a": LONG}, [twelve + " other words"])["overlapping"] == []
    looked = found({"a": LONG}, [twelve, thirteen])
    # Fifteen words have three sequences of thirteen, of which the row has one.
    assert looked["overlapping"] == [{"task": "a", "row": "row 2", "share": pytest.approx(1 / 3)}]
    assert (looked["rows"], looked["tasks"], looked["with_text"]) == (2, 1, 1)


def test_a_shorter_task_overlaps_where_a_row_has_all_its_words_and_a_very_short_one_never():
    rows = ["Question: How many eggs has Ann now? Answer: 18"]
    looked = found({"eggs": "How many eggs has Ann now?", "sum": "2 + 3 ="}, [*rows, "2 + 3 = 5"])
    assert [one["task"] for one in looked["overlapping"]] == ["eggs"]
    assert looked["with_text"] == 1


def test_words_that_many_questions_have_in_common_are_their_form():
    form = "answer the question below and end with the right number alone on the last line"
    questions = {f"t{n}": f"{form}: what is {n} plus {n}?" for n in range(5)}
    looked = found(questions, [f"{form}: name a river"])
    assert looked["overlapping"] == []
    copied = found(questions, [f"{form}: what is 3 plus 3?"])
    assert [one["task"] for one in copied["overlapping"]] == ["t3"]


def test_repeated_tasks_are_named_with_the_first_one():
    looked = found(
        {"a": "How many eggs has Ann?", "b": "how many eggs has ann", "c": "How many eggs has Bob?"}
    )
    assert looked["repeated"] == [{"task": "b", "first": "a"}]


def test_an_answer_in_the_question_is_found_as_whole_words():
    asked = "A shop has 1800 apples and sells 180 of them each day."
    looked = found(
        {
            "there": Question(asked, "1800"),
            "part": Question(asked + " Why?", "800"),
            "short": Question(asked + " When?", "18"),
            "none": Question(asked + " Who?"),
        }
    )
    assert looked["answered"] == ["there"]


def test_all_texts_of_a_row_are_read_whatever_its_form():
    row = {"messages": [{"role": "user", "content": "one two"}], "answer": 3, "meta": {"solution": "three"}}
    assert row_text(row) == "user\none two\nthree"
