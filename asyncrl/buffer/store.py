"""The ledger's connection: nested transactions, single facts, and SQLite's errors classified."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from asyncrl.buffer.body_files import BodyCopy
from asyncrl.buffer.schema import open_database
from asyncrl.disk import outage
from asyncrl.errors import UnavailableError

OUTERMOST = ("BEGIN IMMEDIATE", "COMMIT", ["ROLLBACK"])
NESTED = ("SAVEPOINT inner", "RELEASE inner", ["ROLLBACK TO inner", "RELEASE inner"])

LEDGER = "ledger.sqlite"
"""In the folder of a run's policy."""


class Follower(Protocol):
    """Has every change of a ledger before its caller gets an answer. Raises `UnavailableError` where it cannot."""

    @property
    def bodies(self) -> BodyCopy:
        """Where it keeps the files of large bodies."""
        ...

    def start(self, db: sqlite3.Connection, path: str) -> None:
        """Take in the whole ledger, and follow it from now on."""
        ...

    def ship(self) -> None:
        """Take in what has been committed since."""
        ...

    def close(self) -> None: ...


class Store:
    """One SQLite connection. Not thread-safe."""

    def __init__(self, path: str | Path, base_version: int, follower: Follower | None = None) -> None:
        self.path = str(path)
        self._db = open_database(path, base_version)
        self.follower = follower
        if follower is not None:
            try:
                follower.start(self._db, self.path)
            except BaseException:
                self.close()
                raise
        self.depth = 0
        """Transactions entered and not yet left."""
        self._at_end: list[tuple[bool, Callable[[], None]]] = []
        """What to call when the changes so far are committed (True) or undone (False)."""

    @property
    def in_transaction(self) -> bool:
        return self._db.in_transaction

    def close(self) -> None:
        self._db.close()
        if self.follower is not None:
            self.follower.close()

    def transaction(self) -> Transaction:
        """All or nothing. Nests: an inner one that fails undoes only itself.

        Raises `OutageError` when SQLite cannot write (a disk that is full, read-only or failing, a locked file),
        `UnavailableError` for its other errors; nothing has changed then.
        """
        return Transaction(self)

    def when_committed(self, act: Callable[[], None]) -> None:
        """Call `act` once this transaction, with all around it, is committed."""
        self._at_end.append((True, act))

    def when_undone(self, act: Callable[[], None]) -> None:
        """Call `act` if this transaction, or one around it, is undone."""
        self._at_end.append((False, act))

    def mark(self) -> int:
        """Return a mark that `ended` takes."""
        return len(self._at_end)

    def committed(self) -> None:
        """A transaction with all around it is committed here; have the follower take it in, too.

        If that fails, what waits for the commit goes on waiting, until a later one is in both places.
        """
        if self.follower is not None:
            self.follower.ship()
        self.ended(committed=True)

    def ended(self, committed: bool, mark: int = 0) -> None:
        """What was done since `mark` is committed or undone."""
        ended, self._at_end[mark:] = self._at_end[mark:], []
        for wanted, act in ended:
            if wanted == committed:
                act()

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(statement, values)

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Return the number of rows changed."""
        return self._db.executemany(statement, rows).rowcount

    def rows(self, query: str, *values: Any) -> list[Any]:
        return self._db.execute(query, values).fetchall()

    def row(self, query: str, *values: Any) -> Any:
        return self._db.execute(query, values).fetchone()

    def fact(self, name: str) -> int:
        return self.row("SELECT value FROM facts WHERE name = ?", name)[0]

    def facts(self) -> dict[str, int]:
        return dict(self.rows("SELECT name, value FROM facts"))

    def set_fact(self, name: str, value: int) -> None:
        self.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))


class Transaction:
    """See `Store.transaction`. A class, because it is entered several times a request."""

    __slots__ = ("_mark", "_statements", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._statements = NESTED if store.depth else OUTERMOST
        self._mark = store.mark()

    def __enter__(self) -> None:
        try:
            self._store.execute(self._statements[0])
        except sqlite3.OperationalError as error:
            raise self._explained(error) from error
        self._store.depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._store.depth -= 1
        try:
            if kind is None:
                self._store.execute(self._statements[1])
                if not self._store.depth:
                    self._store.committed()
                return
        except sqlite3.OperationalError as failure:
            self._undo()
            raise self._explained(failure) from failure
        self._undo()
        if isinstance(error, sqlite3.OperationalError):
            raise self._explained(error) from error

    def _undo(self) -> None:
        # A full disk makes SQLite roll back by itself.
        if self._store.in_transaction:
            for statement in self._statements[2]:
                self._store.execute(statement)
        self._store.ended(committed=False, mark=self._mark)

    def _explained(self, error: sqlite3.OperationalError) -> UnavailableError:
        kind = outage(error, folder=Path(self._store.path).parent) or UnavailableError
        return kind(f"ledger {self._store.path}: {error}; nothing was changed")
