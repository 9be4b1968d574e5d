"""The SQLite file of the server's folder, which one server at a time has for itself."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.tinker.tables import ADDED, SCHEMA
from asyncrl.file_lock import own

FILE = "tinker.sqlite"
OWNED = "owned"
"""Locked by the server that has the folder, which ends with its process."""


class Database:
    """For any thread: each call is one transaction, or part of one that `together` holds."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.RLock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._owned = own(
                folder / OWNED, f"--state {folder}: another server has it; give this one a folder of its own"
            )
            self._db = sqlite3.connect(folder / FILE, check_same_thread=False, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            # A commit outlives the process. What the last seconds before a power failure brought may be lost.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(SCHEMA)
            self._add_columns()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--state {folder}: cannot be the server's folder: {error}") from error
        self._depth = 0

    def _add_columns(self) -> None:
        for table, columns in ADDED.items():
            there = {row["name"] for row in self._db.execute(f"PRAGMA table_info({table})")}
            for name, kind in columns.items():
                if name not in there:
                    self._db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
            os.close(self._owned)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all calls inside one transaction: all of them are kept, or none."""
        with self._lock:
            if self._depth:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            else:
                self._db.execute("COMMIT")
            finally:
                self._depth -= 1

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Change rows; return how many."""
        with self.together():
            return self._db.execute(statement, values).rowcount

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def row(self, query: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        """Return the first row of a query, None without one."""
        with self._lock:
            found: sqlite3.Row | None = self._db.execute(query, values).fetchone()
        return found

    def count(self, query: str, values: Sequence[Any] = ()) -> int:
        """Return the number that a query gives."""
        with self._lock:
            return int(self._db.execute(query, values).fetchone()[0])
