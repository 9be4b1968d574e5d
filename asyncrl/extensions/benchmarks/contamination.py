"""Whether evaluated tasks can be known by heart: rows of the training data in them, repeated tasks,
answers in questions. Pure.

Texts are compared by their words, without case and punctuation. A task overlaps with the training data where it shares
`N` consecutive words with a row of it, as in the GPT-3 paper (Brown et al. 2020, appendix C); a shorter one where a row
has all of its words in the same order.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncrl.process_hooks import texts

N = 13
"""Consecutive words that are shared by chance hardly ever."""
FEWEST = 5
"""Words of a task below which nothing is said of its text: short ones are alike by chance."""
SHORTEST_ANSWER = 3
"""Characters of an answer below which its being in the question says nothing."""
FORM, FORM_TASKS = 0.1, 3
"""Words that more than this share of the tasks, and more than so many, have in common are the form of the questions."""

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Question:
    """What is shown of a task, and its right answer."""

    text: str
    answer: str = ""
    """"" where the task has none that is a text."""


def contamination(
    questions: Mapping[str, Question], training: Iterable[tuple[str, str]], n: int = N
) -> dict[str, Any]:
    """Return what is found in tasks, by kind: how many were looked at, and the ids of those with a finding.

    questions: by the id of the task. training: where a row is, and its text.

    `overlapping` are the tasks that share words with the training data, with the row and the share of the
    task's n-grams that the data has; `repeated` those whose text an earlier task has; `answered` those with the right
    answer in the question.
    """
    words = {task: _words(question.text) for task, question in questions.items()}
    long_enough = {task: found for task, found in words.items() if len(found) >= FEWEST}
    grams: dict[int, dict[tuple[str, ...], list[str]]] = defaultdict(lambda: defaultdict(list))
    sizes: Counter[str] = Counter()
    for task, found in long_enough.items():
        size = min(n, len(found))
        own = set(_grams(found, size))
        for gram in own:
            grams[size][gram].append(task)
    form = max(FORM_TASKS, FORM * len(long_enough))
    for size, known in grams.items():
        grams[size] = {gram: tasks for gram, tasks in known.items() if len(tasks) <= form}
        for tasks in grams[size].values():
            sizes.update(tasks)
    shared: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    first: dict[str, str] = {}
    rows = 0
    for where, text in training:
        rows += 1
        row = _words(text)
        for size, known in grams.items():
            for gram in _grams(row, size):
                for task in known.get(gram, ()):
                    shared[task].add(gram)
                    first.setdefault(task, where)
    overlapping = sorted(shared, key=lambda task: (-len(shared[task]) / sizes[task], task))
    seen: dict[tuple[str, ...], str] = {}
    repeated = {
        task: before
        for task, found in long_enough.items()
        if (before := seen.setdefault(tuple(found), task)) != task
    }
    return {
        "n": n,
        "tasks": len(questions),
        "with_text": len(long_enough),
        "rows": rows,
        "overlapping": [
            {"task": task, "row": first[task], "share": len(shared[task]) / sizes[task]}
            for task in overlapping
        ],
        "repeated": [{"task": task, "first": before} for task, before in repeated.items()],
        "answered": [
            task for task, question in questions.items() if task in long_enough and _answered(question)
        ],
    }


def row_text(row: Any) -> str:
    """Return all texts in a row of training data, one after the other."""
    return "\n".join(texts(row))


def _answered(question: Question) -> bool:
    answer, text = _words(question.answer), _words(question.text)
    return len(question.answer.strip()) >= SHORTEST_ANSWER and tuple(answer) in set(_grams(text, len(answer)))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _grams(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    for start in range(len(words) - size + 1) if size else ():
        yield tuple(words[start : start + size])
