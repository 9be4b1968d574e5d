"""Compare results: rows as multisets unless order was asked for, numbers by value."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

from asyncrl.envs.sql.database import Row
from asyncrl.rewards.marks import last_fence

LANGUAGE = re.compile(r"sql\b", re.IGNORECASE)
QUERY = re.compile(r"\s*(select|with|values)\b", re.IGNORECASE)


def as_query(content: str) -> str:
    """Return the query if the answer is one, or an empty text if it consists of values."""
    block = last_fence(content)
    text = (content if block is None else _without_language(block)).strip().rstrip(";")
    return text if QUERY.match(text) else ""


def _without_language(block: str) -> str:
    block = block.lstrip()
    named = LANGUAGE.match(block)
    return block[named.end() :] if named else block


def as_rows(content: str) -> list[Row]:
    """Return the rows of an answer in words: one per line, cells separated by `|` or `,`."""
    lines = [line.strip().strip("|") for line in content.strip().splitlines() if line.strip()]
    return [tuple(cell.strip() for cell in re.split(r"[|,]", line)) for line in lines]


def same_rows(given: list[Row], gold: list[Row], ordered: bool) -> bool:
    """Return True if the rows are equal, in any order unless `ordered`; "7", 7 and 7.0 are the same value."""
    left, right = ([tuple(_plain(cell) for cell in row) for row in rows] for rows in (given, gold))
    return left == right if ordered else Counter(left) == Counter(right)


def _plain(cell: Any) -> Any:
    """Return a cell in canonical form: numbers rounded to six places, text in lower case."""
    if cell is None:
        return "null"
    try:
        number = float(cell)
    except (TypeError, ValueError):
        return cell.hex() if isinstance(cell, bytes) else str(cell).strip().casefold()
    return round(number, 6) if math.isfinite(number) else str(number)
