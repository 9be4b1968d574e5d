r"""The right answer of a row, as data sets publish it: its own column, `#### 18`, a solution with `\boxed{...}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncrl.rewards.answers.extraction import boxed

COLUMNS = (
    "answer",
    "Answer",
    "expected_answer",
    "final_answer",
    "ground_truth",
    "target",
    "label",
    "solution",
)
_BOX = re.compile(r"\\(?:boxed|fbox)\b")


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


def golds(row: Mapping[str, Any]) -> list[str]:
    """Return the final answers of which each is right; one, unless the row's answer is a list. Raises `KeyError`."""
    found = published_answer(row)
    return [final_answer(one) for one in (found if isinstance(found, list | tuple) else [found])]


def final_answer(published: Any) -> str:
    """Return the final answer of a worked one."""
    if isinstance(published, float) and published.is_integer():
        published = int(published)
    text = str(published).strip()
    if "####" in text:
        return text.rpartition("####")[2].strip()
    if _BOX.search(text) and (found := boxed(text)) is not None:
        return found.strip()
    return text
