r"""Questions with one answer, in the fields of GSM8K (`#### 18`), MATH (`solution` with \boxed) and AIME (`Answer`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.answer_rewards.equality import never_right
from asyncrl.extensions.answer_rewards.extraction import boxed
from asyncrl.extensions.benchmarks.importers.records import Imported, NeverRight, text
from asyncrl.rows.question import AFTER, BEFORE, CHOICES, QUESTIONS, chosen_label, whole_question

ENV = "asyncrl.envs.benchmarks.answer:Answer"
EXPECTED = r"question or problem, and answer (GSM8K's may end in '#### N') or a solution with \boxed{...}"
ANSWERS = ("answer", "Answer", "expected_answer")
IDS = ("unique_id", "id", "ID")
TAGS = ("type", "subject")
READ = frozenset(
    (*QUESTIONS, *BEFORE, *AFTER, *CHOICES, *ANSWERS, *IDS, *TAGS, "solution", "idx", "url", "year")
)
"""Fields that are part of the task, or that say nothing of its question. Others are named when a file is read."""
BOX = re.compile(r"\\(?:boxed|fbox)\b")


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    question = whole_question(record)
    name = next((name for name in ANSWERS if name in record), None)
    if name is None:
        answer = _boxed(text(record, "solution"))
    elif isinstance(record[name], bool) or not isinstance(record[name], str | int | float):
        raise TypeError(f"{name}: must be text or a number, got {record[name]!r:.80}")
    else:
        answer = str(chosen_label(record, record[name]))
        if "####" in answer:
            answer = answer.rpartition("####")[2].replace(",", "")
        elif BOX.search(answer):
            answer = _boxed(answer)
    answer = answer.strip()
    if (why := never_right(answer)) is not None:
        raise NeverRight(why)
    found = str(next((record[key] for key in IDS if key in record), ""))
    tags = [record[key] for key in TAGS if isinstance(record.get(key), str)]
    return Imported(found, {"question": question, "answer": answer} | ({"tags": tags} if tags else {}))


def _boxed(solution: str) -> str:
    found = boxed(solution)
    if found is None:
        raise ValueError(r"the solution has no \boxed{...}")
    return found
