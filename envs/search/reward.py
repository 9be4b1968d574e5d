"""Answers compared as SQuAD compares them: normalised exact match, and the F1 of the words."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return the text in lower case, without punctuation, articles and extra blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def extract(content: str) -> str:
    """Return the final answer of a turn: what follows the last "answer:", else its last line."""
    lines = [line.strip() for line in content.strip().splitlines() if line.strip()]
    for line in reversed(lines):
        found = re.search(r"answer\s*(?:is|:)\s*(.+)", line, re.IGNORECASE)
        if found:
            return found.group(1)
    return lines[-1] if lines else ""


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """Return 1.0 if the normalised answer is one of the normalised gold answers."""
    return float(normalise(answer) in {normalise(gold) for gold in golds})


def f1(answer: str, golds: Iterable[str]) -> float:
    """Return the best word F1 between the answer and a gold answer."""
    return max((_f1(normalise(answer).split(), normalise(gold).split()) for gold in golds), default=0.0)


def _f1(answer: list[str], gold: list[str]) -> float:
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold)) if common else 0.0
