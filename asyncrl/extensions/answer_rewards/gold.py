r"""The right answer of a row, as data sets publish it: its own column, `#### 18`, a solution with `\boxed{...}`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.answer_rewards.extraction import boxed
from asyncrl.rewards.published import published_answers

_BOX = re.compile(r"\\(?:boxed|fbox)\b")


def golds(row: Mapping[str, Any]) -> list[str]:
    """Return the final answers of which each is right. Raises as `published_answers` does."""
    return [final_answer(one) for one in published_answers(row)]


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
