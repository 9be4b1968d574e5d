"""Where a row has its answer, by the names of columns under which data sets publish it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMNS = (
    "answer",
    "Answer",
    "expected_answer",
    "final_answer",
    "ground_truth",
    "target",
    "label",
    "solution",
    "golden_answers",
    "correct_answer",
    "gt_answer",
)
ALIKE = ("value", "aliases", "text")
"""Fields of an answer that is an object: the answer, its other forms, and all of them."""


def published_answer(row: Mapping[str, Any]) -> Any:
    """Return what a row gives as the answer: the first of `COLUMNS`, or verl's `reward_model.ground_truth`.

    Raises `KeyError` naming what was looked for.
    """
    for name in COLUMNS:
        if row.get(name) is not None:
            return row[name]
    model = row.get("reward_model")
    if isinstance(model, Mapping) and model.get("ground_truth") is not None:
        return model["ground_truth"]
    raise KeyError(f"no column {', '.join(COLUMNS)}; the row has {', '.join(map(str, row)) or 'none'}")


def published_answers(row: Mapping[str, Any]) -> list[Any]:
    """Return the answers of which each is right: one, unless the row's is a list, or an object with other forms of it
    (TriviaQA) or a list of texts (SQuAD).

    Raises `KeyError` for a row without one, and for another object.
    """
    found = published_answer(row)
    if not isinstance(found, Mapping):
        return list(found) if isinstance(found, list | tuple) else [found]
    inside = [found[name] for name in ALIKE if found.get(name) not in (None, "", [])]
    if not inside:
        fields = ", ".join(map(str, found)) or "none"
        raise KeyError(
            f'the answer is an object with the fields {fields}; name one by data.answer, "{{column.field}}"'
        )
    flat = [one for value in inside for one in (value if isinstance(value, list | tuple) else [value])]
    return list(dict.fromkeys(map(str, flat)))
