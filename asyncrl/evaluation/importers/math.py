r"""Questions with one answer, in the fields of GSM8K (`#### 18`), MATH (`solution` with \boxed) and AIME (`Answer`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.evaluation.importers.records import Imported, text

ENV = "asyncrl.envs.benchmarks.answer:Answer"
EXPECTED = r"question or problem, and answer (GSM8K's may end in '#### N') or a solution with \boxed{...}"
BOX = r"\boxed{"


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    question = text(record, "question", "problem", "Question", "Problem", "prompt")
    name = next((name for name in ("answer", "Answer", "expected_answer") if name in record), None)
    if name is None:
        answer = boxed(text(record, "solution"))
    elif isinstance(record[name], bool) or not isinstance(record[name], str | int | float):
        raise TypeError(f"{name}: must be text or a number, got {record[name]!r:.80}")
    else:
        answer = str(record[name])
        if "####" in answer:
            answer = answer.rpartition("####")[2].replace(",", "")
        elif BOX in answer:
            answer = boxed(answer)
    answer = answer.strip().strip("$")
    if not answer:
        raise ValueError("the answer is empty")
    found = str(record.get("unique_id", record.get("id", record.get("ID", ""))))
    tags = [record[key] for key in ("type", "subject") if isinstance(record.get(key), str)]
    return Imported(found, {"question": question, "answer": answer} | ({"tags": tags} if tags else {}))


def boxed(solution: str) -> str:
    r"""Return what the last \boxed{...} of a solution holds. Raises `ValueError`."""
    start = solution.rfind(BOX)
    if start < 0:
        raise ValueError(r"the solution has no \boxed{...}")
    depth, begin = 1, start + len(BOX)
    for place in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if depth == 0:
            return solution[begin:place]
    raise ValueError(r"\boxed{ is not closed")
