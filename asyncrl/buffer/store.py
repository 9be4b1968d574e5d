"""The ledger's connection: nested transactions, single facts, and SQLite's errors told apart."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asyncrl.buffer.schema import open_database
from asyncrl.errors import UnavailableError

OUTERMOST = ("BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"])
NESTED = ("SAVEPOINT inner", "RELEASE inner", ["ROLLBACK TO inner", "RELEASE inner"])


class Store:
    """One SQLite connection. Not thread-safe."""

    def __init__(self, path: str | Path, base_version: int) -> None:
        self.path = str(path)
        self._db = open_database(path, base_version)
        self._depth = 0

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing. Nests: an inner one that fails undoes only itself.

        Raises `UnavailableError` when SQLite cannot write (a full or read-only disk); nothing has changed
        then.
        """
        begin, commit, rollback = NESTED if self._depth else OUTERMOST
        with self._explained():
            self._db.execute(begin)
            self._depth += 1
            try:
                yield
                self._db.execute(commit)
            except BaseException:
                # A full disk makes SQLite roll back by itself.
                if self._db.in_transaction:
                    for statement in rollback:
                        self._db.execute(statement)
                raise
            finally:
                self._depth -= 1

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Return the number of rows changed."""
        return self._db.executemany(statement, rows).rowcount

    def rows(self, query: str, *values: Any) -> list[Any]:
        with self._explained():
            return self._db.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> Any:
        with self._explained():
            return self._db.execute(query, values).fetchone()

    def fact(self, name: str) -> int:
        return self.row("SELECT value FROM facts WHERE name = ?", name)[0]

    def set_fact(self, name: str, value: int) -> None:
        self.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def copy_to(self, path: str | Path) -> None:
        """Write a consistent copy to another file."""
        with self._explained():
            target = sqlite3.connect(str(path))
            try:
                self._db.backup(target)
            finally:
                target.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise UnavailableError(f"ledger {self.path}: {error}; nothing was changed") from error
