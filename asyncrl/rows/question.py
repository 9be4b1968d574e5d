"""The whole question of a row without a template: its text, and the fields that belong to it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

QUESTIONS = (
    "question",
    "problem",
    "Question",
    "Problem",
    "prompt",
    "query",
    "instruction",
    "question_stem",
    "quiz",
)
"""Columns with a question, of which the first that is there is taken."""
BEFORE = ("Body", "body", "context", "passage", "article", "support")
"""Columns with a text that the question is about (SVAMP, ASDiv, SQuAD, BoolQ, RACE)."""
AFTER = ("input",)
"""Columns with what an instruction is to be applied to (Alpaca)."""
CHOICES = ("choices", "options")
"""Columns with the answers to choose among (MMLU, ARC, CommonsenseQA, RACE)."""
LETTERED = ("{}", "option_{}", "option{}", "choice_{}", "choice{}", "op{}")
"""Names of columns with a choice each, around its letter (MMLU's CSV files, C-Eval, MedMCQA)."""
_OF_LETTERS = [
    [(letter.upper(), form.format(letter)) for letter in letters]
    for form in LETTERED
    for letters in (ascii_uppercase, ascii_lowercase)
    if form != "{}" or letters == ascii_uppercase
]
"""By form and case: each letter, and its column. Asked of every row."""

PARTS = (*BEFORE, *CHOICES)
"""What is often part of a question, and never left out in silence."""


def question_columns(columns: Sequence[str]) -> list[str]:
    """Return the columns that the whole question is made of, the question's own first; none without a question."""
    question = next((name for name in QUESTIONS if name in columns), None)
    if question is None:
        return []
    choices = [name for name in CHOICES if name in columns] or list(lettered_columns(columns).values())
    return [question, *(name for name in (*BEFORE, *AFTER) if name in columns), *choices]


def lettered_columns(columns: Collection[str]) -> dict[str, str]:
    """Return the columns that hold a choice each, by their letters from A on; none unless there are two at least."""
    for form in _OF_LETTERS:
        there = dict(itertools.takewhile(lambda pair: pair[1] in columns, form))
        if len(there) > 1:
            return there
    return {}


def whole_question(row: Mapping[str, Any]) -> str:
    """Return a row's question with what belongs to it. Raises `KeyError` without a question, `TypeError` for one that
    is no text."""
    name = next((name for name in QUESTIONS if name in row), None)
    if name is None:
        raise KeyError(" or ".join(QUESTIONS))
    parts = [row[key] for key in (*BEFORE, name, *AFTER) if row.get(key) not in (None, "", [], {})]
    for part in parts:
        if not isinstance(part, str):
            key = next(key for key, value in row.items() if value is part)
            raise TypeError(f"{key}: must be text, got {part!r:.80}{_inside(key, part)}")
    return "\n".join([*parts, *map(": ".join, labelled_choices(row))])


def _inside(column: str, value: Any) -> str:
    """Return how a text inside a column is named, "" where it has none."""
    name = (
        next((key for key, one in value.items() if isinstance(one, str)), "")
        if isinstance(value, Mapping)
        else ""
    )
    return f'; name a field of it by data.prompt="{{{column}.{name}}}"' if name.isidentifier() else ""


def labelled_choices(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return letter, or other label, and text of each choice of a row; none without choices. Raises `TypeError`.

    Labels that are numbers become letters: an answer "2" would else be read as a number (ARC has both kinds). More than
    there are letters stay numbers.
    """
    return _lettered(_own_choices(row))


def _lettered(own: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if len(own) > len(ascii_uppercase) or not all(label.isdecimal() for label, _ in own):
        return own
    return [(letter, text) for letter, (_, text) in zip(ascii_uppercase, own, strict=False)]


def _own_choices(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the choices with the row's own labels."""
    name = next((name for name in CHOICES if row.get(name)), None)
    if name is None:
        return [(letter, str(row[column])) for letter, column in lettered_columns(row).items()]
    found = row[name]
    if isinstance(found, Mapping) and {"text", "label"} <= found.keys():
        labels, texts = found["label"], found["text"]
    elif isinstance(found, Mapping):
        labels, texts = list(found), list(found.values())
    else:
        labels, texts = list(ascii_uppercase[: len(found)]) if isinstance(found, list) else [], found
    if not isinstance(texts, list) or len(labels) != len(texts):
        raise TypeError(
            f"{name}: must be a list of texts, at most 26, or their labels and texts, got {found!r:.80}"
        )
    return [(str(label), str(text)) for label, text in zip(labels, texts, strict=True)]


def chosen_label(row: Mapping[str, Any], answer: Any) -> Any:
    """Return the label of the right choice where the answer is the row's own label or its number from 0, else the
    answer as it is.

    Raises `TypeError` for choices in no known form, `ValueError` for a number that no choice has.
    """
    choices = _own_choices(row)
    own, labels = [label for label, _ in choices], [label for label, _ in _lettered(choices)]
    if not labels or isinstance(answer, bool):
        return answer
    if str(answer) in own:
        return labels[own.index(str(answer))]
    if not isinstance(answer, int):
        return answer
    if not 0 <= answer < len(labels):
        raise ValueError(f"the answer is choice {answer} of {len(labels)}, counted from 0")
    return labels[answer]
