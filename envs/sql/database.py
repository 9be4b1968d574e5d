"""Run SQL that nobody has read against a database nobody can change.

Four walls: the file is opened read-only and immutable, `query_only` is set, an authorizer lets nothing through but
reading, and a progress handler ends what runs too long. Lengths are bounded, so no single operation takes long either.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import dataclass
from typing import Any

from asyncrl.scratch import scratch_folder

SQL_CHARACTERS = 5_000
VALUE_BYTES = 20_000
PATTERN_BYTES = 200
OPERATIONS_BETWEEN_LOOKS = 1_000
ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)
REFUSED_FUNCTIONS = frozenset({"load_extension", "random", "randomblob", "fts3_tokenizer"})
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: SQL_CHARACTERS * 4,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: PATTERN_BYTES,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}

Row = tuple[Any, ...]


class QueryError(Exception):
    """A query that gave no result; the text is what the model is told."""


@dataclass(frozen=True, slots=True)
class Result:
    columns: tuple[str, ...]
    rows: list[Row]
    more: bool
    """There were more rows than were asked for."""


class Database:
    """A database image in a temporary file that is gone with this object, opened anew for every query."""

    def __init__(self, image: bytes) -> None:
        # Not a context manager: it lives as long as the episode.
        self._held = contextlib.ExitStack()
        self._path = self._held.enter_context(scratch_folder("sql")) / "image.sqlite"
        self._path.write_bytes(image)

    def close(self) -> None:
        self._held.close()

    def query(self, sql: str, max_rows: int, timeout_s: float) -> Result:
        """Return the first `max_rows` rows of one query. Blocks up to `timeout_s`. Raises `QueryError`."""
        if len(sql) > SQL_CHARACTERS:
            raise QueryError(f"a query has at most {SQL_CHARACTERS} characters")
        connection = sqlite3.connect(f"file:{self._path}?mode=ro&immutable=1", uri=True)
        try:
            over = _guard(connection, time.monotonic() + timeout_s)
            try:
                cursor = connection.execute(sql)
                rows = cursor.fetchmany(max_rows + 1)
            except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
                text = f"the query ran longer than {timeout_s:.3g} s" if over() else str(error)
                raise QueryError(text) from None
            if cursor.description is None:
                raise QueryError("there is no query")
            columns = tuple(column[0] for column in cursor.description)
            return Result(columns, rows[:max_rows], len(rows) > max_rows)
        finally:
            connection.close()


def _guard(connection: sqlite3.Connection, deadline: float) -> Any:
    """Put up the walls; return a function that tells whether the deadline has passed."""

    def over() -> bool:
        return time.monotonic() > deadline

    connection.execute("PRAGMA query_only = ON")
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    connection.set_progress_handler(over, OPERATIONS_BETWEEN_LOOKS)
    connection.set_authorizer(_authorize)
    return over


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    allowed = action in ALLOWED and not (action == sqlite3.SQLITE_FUNCTION and second in REFUSED_FUNCTIONS)
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
