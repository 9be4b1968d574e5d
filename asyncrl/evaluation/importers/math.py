r"""Questions with one answer, in the fields of GSM8K (`#### 18`), MATH (`solution` with \boxed) and AIME (`Answer`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncrl.evaluation.importers.records import Imported, NeverRight, text
from asyncrl.rewards.answers.equality import never_right
from asyncrl.rewards.answers.extraction import boxed

ENV = "asyncrl.envs.benchmarks.answer:Answer"
EXPECTED = r"question or problem, and answer (GSM8K's may end in '#### N') or a solution with \boxed{...}"
BOX = re.compile(r"\\(?:boxed|fbox)\b")


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    question = text(record, "question", "problem", "Question", "Problem", "prompt")
    name = next((name for name in ("answer", "Answer", "expected_answer") if name in record), None)
    if name is None:
        answer = _boxed(text(record, "solution"))
    elif isinstance(record[name], bool) or not isinstance(record[name], str | int | float):
        raise TypeError(f"{name}: must be text or a number, got {record[name]!r:.80}")
    else:
        answer = str(record[name])
        if "####" in answer:
            answer = answer.rpartition("####")[2].replace(",", "")
        elif BOX.search(answer):
            answer = _boxed(answer)
    answer = answer.strip()
    if (why := never_right(answer)) is not None:
        raise NeverRight(why)
    found = str(record.get("unique_id", record.get("id", record.get("ID", ""))))
    tags = [record[key] for key in ("type", "subject") if isinstance(record.get(key), str)]
    return Imported(found, {"question": question, "answer": answer} | ({"tags": tags} if tags else {}))


def _boxed(solution: str) -> str:
    found = boxed(solution)
    if found is None:
        raise ValueError(r"the solution has no \boxed{...}")
    return found
