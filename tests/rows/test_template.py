"""What of a row is asked and what is its answer; nothing of the question is lost, and the answer is not shown."""

import re

import pytest

from asyncrl.errors import ConfigError
from asyncrl.rows.question import chosen_label, whole_question
from asyncrl.rows.template import Template, fill


def template(row, prompt="", system="", answer="", images=""):
    return Template("a.jsonl", list(row), prompt, system, answer, images)


def asked(row, **settings):
    return template(row, **settings).messages(row)


def user(text):
    return {"role": "user", "content": text}


def test_columns_in_braces_are_filled_in_and_doubled_braces_stand_for_themselves():
    row = {"a": "x", "b": {"c": 4.0, "d": ["p", "q"]}, "n": 5}
    assert fill("{a} {b.c} {n} {{a}} \\boxed{...} {b.d}", row) == "x 4 5 {a} \\boxed{...} p\nq"
    with pytest.raises(KeyError, match="'x'"):
        fill("{x.y}", row)
    with pytest.raises(ValueError, match=r"^b has no field 'x'; it has c, d$"):
        fill("{b.x}", row)
    with pytest.raises(ValueError, match=r"^b\.c has no field 'x'; it is 4\.0$"):
        fill("{b.c.x}", row)


def test_a_field_alone_may_hold_messages():
    row = {"input": {"messages": [user("Hi")], "n": 2.0}, "answer": "a"}
    assert asked(row, prompt="{input.messages}", answer="answer") == [user("Hi")]
    assert asked(row, prompt="{input.n}", answer="answer") == [user("2")]
    with pytest.raises(ValueError, match=r"^input has no field 'message'; it has messages, n$"):
        asked(row, prompt="{input.message}", answer="answer")


def test_conversations_of_which_one_is_preferred_have_the_prompt_where_no_column_has_it():
    talk = [user("Hi"), {"role": "assistant", "content": "good"}]
    row = {"chosen": talk, "rejected": [user("Hi"), {"role": "assistant", "content": "bad"}]}
    assert asked(row) == [user("Hi")]
    assert template(row).right_answer(row) == "good"
    assert asked(row | {"question": "Why?"}) == [user("Why?")]
    of_openai = {
        "input": {"messages": [user("Hi")]},
        "preferred_output": talk[1:],
        "non_preferred_output": [],
    }
    assert asked(of_openai) == [user("Hi")]
    with pytest.raises(
        ValueError, match=r"^chosen: is a text, so which part of it is the prompt cannot be told"
    ):
        asked({"chosen": "Human: Hi Assistant: good", "rejected": "Human: Hi Assistant: bad"})
    with pytest.raises(ConfigError, match="has none of the usual columns"):
        template({"chosen": talk})


def test_a_prompt_is_a_template_or_a_column():
    row = {"Body": "There are 3.", "Question": "How many?", "Answer": 3.0, "answer": "no"}
    assert asked(row, prompt="{Body} {Question}", answer="Answer") == [user("There are 3. How many?")]
    assert asked(row, prompt="Question", system="For {Body}") == [
        {"role": "system", "content": "For There are 3."}, user("How many?"),
    ]  # fmt: skip
    assert template(row, prompt="Question", answer="Answer").right_answer(row) == 3.0
    assert template(row, prompt="Question", answer="{Answer} pieces").right_answer(row) == "3 pieces"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"question": "q?"}, "q?"),
        ({"problem": "p"}, "p"),
        # SVAMP, ASDiv, SQuAD: the question is about a text that stands in a column of its own.
        ({"Body": "Jo has 3.", "Question": "How many?", "Answer": 3}, "Jo has 3.\nHow many?"),
        ({"body": "Jo has 3.", "question": "How many?"}, "Jo has 3.\nHow many?"),
        ({"context": "A text.", "question": "What?"}, "A text.\nWhat?"),
        ({"instruction": "Translate.", "input": "Hund", "output": "dog"}, "Translate.\nHund"),
        ({"instruction": "Say hi.", "input": ""}, "Say hi."),
        # MMLU, ARC, and an object of choices.
        ({"question": "q?", "choices": ["x", "y"], "answer": 1}, "q?\nA: x\nB: y"),
        ({"question": "q?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}}, "q?\nA: x\nB: y"),
        ({"question": "q?", "options": {"A": "x", "B": "y"}}, "q?\nA: x\nB: y"),
        (
            {"question": "q?", "choices": {"text": ["x"] * 27, "label": [str(n) for n in range(1, 28)]}},
            "\n".join(["q?", *(f"{n}: x" for n in range(1, 28))]),
        ),
        # Files with a column for each choice: MMLU and C-Eval, others, MedMCQA.
        ({"question": "q?", "A": "x", "B": "y", "C": 3, "answer": "B"}, "q?\nA: x\nB: y\nC: 3"),
        ({"question": "q?", "option_a": "x", "option_b": "y"}, "q?\nA: x\nB: y"),
        ({"question": "q?", "opa": "x", "opb": "y", "opd": "not the third", "cop": 1}, "q?\nA: x\nB: y"),
        ({"question": "q?", "A": "no choice alone"}, "q?"),
    ],
)  # fmt: skip
def test_without_a_template_the_whole_question_is_asked(row, text):
    assert asked(row) == [user(text)]
    assert whole_question(row) == text
    assert not set(template(row).unused) & {"Body", "body", "context", "input", "choices", "options"}


@pytest.mark.parametrize(
    ("row", "right"),
    [
        ({"question": "q", "choices": ["x", "y"], "answer": 1}, "B"),
        ({"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answer": "2"}, "B"),
        ({"question": "q", "choices": ["x", "y"], "answer": "A"}, "A"),
        ({"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": 2}, "B"),
        ({"question_stem": "q", "choices": {"text": ["x", "y"], "label": ["C", "D"]}, "answerKey": "D"}, "D"),
        ({"question": "q", "answer": 1}, 1),
    ],
)
def test_the_number_of_a_choice_is_its_letter(row, right):
    assert template(row).right_answer(row) == right


def test_a_choice_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="the answer is choice 2 of 2"):
        chosen_label({"choices": ["x", "y"]}, 2)


def test_a_conversation_is_asked_up_to_the_assistants_last_words_which_are_the_answer():
    turns = [{"role": "system", "content": "s"}, user("a"), {"role": "assistant", "content": "b"}, user("c")]
    row = {"messages": [*turns, {"role": "assistant", "content": "d"}], "id": 4}
    made = template(row, system="another")
    assert made.messages(row) == turns
    assert made.right_answer(row) == "d"
    assert made.unused == ["id"]
    share_gpt = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    assert asked(share_gpt) == [user("hi")]
    # The form of verl's files.
    verl = {
        "prompt": [user("q")],
        "reward_model": {"ground_truth": "42", "style": "rule"},
        "data_source": "x",
    }
    assert asked(verl) == [user("q")]
    assert template(verl).right_answer(verl) == "42"
    assert template(verl).unused == ["data_source"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "{quest}"}, "data.prompt: a.jsonl has no column 'quest'; there are: question, answer"),
        (
            {"prompt": "quest"},
            "data.prompt: a.jsonl has no column 'quest'; a template names columns in braces",
        ),
        ({"answer": "gold"}, "data.answer: a.jsonl has no column 'gold'"),
        ({"system": "{x}"}, "data.system: a.jsonl has no column 'x'"),
        ({"images": "image"}, "data.images: a.jsonl has no column 'image'"),
        ({"prompt": "{question} {answer}"}, "data.prompt: shows column 'answer', which is the right answer"),
        (
            {"system": r"End with \boxed{answer}."},
            "shows column 'answer', which is the right answer; write {{answer}}",
        ),
    ],
)
def test_a_column_that_is_not_there_and_a_prompt_that_shows_the_answer_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message.replace("{", r"\{").replace(".", r"\.")):
        template({"question": "q", "answer": "a"}, **settings)


def test_rows_without_a_usual_column_need_a_prompt():
    with pytest.raises(
        ConfigError, match=r'name one, or write a template such as "\{text\}"; there are: text, label'
    ):
        template({"text": "t", "label": 1})


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"question": "  ", "answer": 1}, "the prompt is empty"),
        ({"messages": []}, "messages: holds no message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "a message's role must be system"),
        ({"question": {"a": 1}}, "question: must be text"),
        ({"question": "q", "context": ["x"]}, "context: must be text"),
        ({"question": "q", "choices": "x"}, "choices: must be a list of texts"),
    ],
)
def test_a_row_without_a_prompt_is_refused(row, error):
    with pytest.raises((ValueError, TypeError), match=error):
        asked(row)


def test_a_right_answer_in_columns_of_choices_is_its_letter():
    row = {"question": "q?", "opa": "x", "opb": "y", "cop": 1}
    assert template(row, answer="cop").right_answer(row) == "B"
    assert template(row | {"answerKey": "A"}).right_answer(row | {"answerKey": "A"}) == "A"


@pytest.mark.parametrize(
    ("row", "settings", "message"),
    [
        (
            {"problem": {"text": "q?"}, "answer": 1},
            {"prompt": "problem.text"},
            '"{problem.text}"; there are: problem',
        ),
        (
            {"question": "q?", "answer": 1},
            {"prompt": "text"},
            "a template names columns in braces; there are: question",
        ),
    ],
)
def test_a_column_that_is_not_there_is_refused_with_how_to_name_it(row, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        template(row, **settings)


def test_a_question_with_fields_inside_says_how_to_name_one():
    with pytest.raises(
        TypeError, match=r'problem: must be text, got .*; name a field of it by data\.prompt="\{problem'
    ):
        asked({"problem": {"text": "q?"}, "answer": 1})
