"""How the final answer is read from a text: by an extension, which those who only ask do not import."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Protocol

from asyncrl.extensions.table import rows


class FinalAnswers(Protocol):
    """Reads answers. Takes time in proportion to the text; safe to use from many threads."""

    def extract(self, text: str) -> str | None:
        """Return the final answer of a completion, or None if it has none."""
        ...

    def ballot(self, extracted: str | None) -> Hashable | None:
        """Return what an extracted answer counts as where answers are voted on, None for no answer."""
        ...


@functools.cache
def final_answers() -> FinalAnswers:
    """Return what reads answers."""
    first, *_ = rows("answer_readers")
    reader: FinalAnswers = first.load()()
    return reader
