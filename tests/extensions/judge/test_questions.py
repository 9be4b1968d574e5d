"""What a chat judge is asked, and which replies count."""

import pytest

from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.questions import JudgeRequest, Scores, asked, chat_body, read_reply
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.types import Task

RUBRICS = {
    "correct": {"rubric": "Is the result right?", "weight": 2.0},
    "brief": {"rubric": "Is it short?\nShort is under 3 lines.", "scale": [1, 5]},
}
TURNS = {1: 0, 3: 1}


def config(**given):
    return JudgeConfig(url="http://j", components=RUBRICS, **given)


def request(turns=TURNS, text="4"):
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": text} for n in range(4)]
    return JudgeRequest(Task("t", "e", 0, data={"answer": 4}), tuple(messages), 0.0, turns)


def read(text, given=None, **more):
    choice = {"message": {"content": text}, **more}
    return read_reply(given or config(), request(), {"choices": [choice]})


def prompt(given=None, **more):
    return chat_body(given or config(), request(**more))["messages"][0]["content"]


def test_one_request_asks_for_all_components_and_says_how_the_reply_ends():
    text = prompt()
    assert "- correct, from 0 to 10: Is the result right?" in text
    assert "- brief, from 1 to 5: Is it short?\n| Short is under 3 lines." in text
    assert text.endswith("\ncorrect: NUMBER\nbrief: NUMBER")
    assert 'Task data: {"answer": 4}' in text


def test_each_turn_has_a_number_and_a_line():
    text = prompt(config(per_turn=True))
    assert "[assistant, turn 1] 4" in text and "[assistant, turn 2] 4" in text
    assert text.endswith("\ncorrect: NUMBER\nbrief: NUMBER\nturn 1: NUMBER\nturn 2: NUMBER")
    assert chat_body(config(per_turn=True), request())["max_tokens"] == 512 + 4 * 16


def test_turns_without_components_are_scored_beside_the_whole():
    alone = JudgeConfig(url="http://j", per_turn=True)
    assert list(asked(alone, request())) == ["overall", "turn 1", "turn 2"]
    assert read("overall: 5\nturn 1: 0\nturn 2: 10", alone) == Scores({"overall": 0.5}, {0: 0.0, 1: 1.0})


def test_an_own_prompt_has_rubric_and_form_where_it_says():
    text = prompt(config(prompt="R {rubric} C {conversation} F {form}"), text="{rubric}{form}{task}")
    assert text.count("correct: NUMBER") == 1
    assert "[user] {rubric}{form}{task}\n" in text


def test_several_samples_are_sampled_and_one_is_not():
    assert chat_body(config(samples=3), request())["temperature"] == 1.0
    assert chat_body(config(), request())["temperature"] == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "correct: 8\nbrief: 2",
        "Reasons.\n\n  brief: 2\r\n correct: 8.0 \n\n",
        "The answer says\ncorrect: 10\nbrief: 5\nwhich it cannot.\ncorrect: 8\nbrief: 2",
    ],
)
def test_the_last_lines_are_the_scores_brought_to_their_scales(text):
    assert read(text) == Scores({"correct": 0.8, "brief": 0.25})


def test_a_scale_may_begin_below_zero():
    given = JudgeConfig(url="http://j", components={"tone": {"rubric": "t", "scale": [-1, 1]}})
    assert read("tone: -0.5", given) == Scores({"tone": 0.25})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("correct: 8", "the reply has no number for brief"),
        ("brief: 2\nbrief: 2", "must end with a line each for correct, brief"),
        ("correct: 8\ncorrect: 9\nbrief: 2", "ends with more lines than were asked for"),
        ("correct: 8\nbrief: 2\nI hope this helps.", "ends with more lines than were asked for"),
        ("correct: 8\nbrief: 0", "brief must be from 1 to 5, got 0"),
        ("correct: 11\nbrief: 2", "correct must be from 0 to 10, got 11"),
        ("correct: -1\nbrief: 2", "correct must be from 0 to 10, got -1"),
        ("correct: 8/10\nbrief: 2", "must end with a line each"),
        ("correct: ٨\nbrief: 2", "must end with a line each"),
        ("correct: ８\nbrief: 2", "must end with a line each"),
        ("соrrect: 8\nbrief: 2", "must end with a line each"),
        ("correct: 1e1\nbrief: 2", "must end with a line each"),
        ("correct: nan\nbrief: 2", "must end with a line each"),
        ("**correct: 8**\nbrief: 2", "must end with a line each"),
        ("correct: NUMBER\nbrief: NUMBER", "must end with a line each"),
        ("correct: 8\u2028brief: 2", "must end with a line each"),
        ("", "has no number for correct"),
    ],
)
def test_any_other_form_is_the_judges_failure(text, why):
    with pytest.raises(JudgeError, match=why):
        read(text)


def test_a_reply_that_was_cut_off_is_no_score():
    with pytest.raises(JudgeError, match=r"cut off after 544 tokens, see judge\.max_tokens"):
        read("correct: 8\nbrief: 1", finish_reason="length")
