"""Whether a ledger's file holds what was written to it: a disk or a copy may have changed bytes of it unnoticed.

SQLite finds damage to its own structure (`quick_check`), not a changed value. Each task's row therefore has a digest,
kept by triggers in the transaction that changes the row, and each group's body has a checksum. All are compared when
the ledger is opened.
"""

from __future__ import annotations

import marshal
import sqlite3
import zlib
from typing import Any

COLUMNS = (
    *("id", "body", "state", "attempts", "lease", "lease_order", "request", "worker", "version", "deadline"),
    *("step", "oldest", "newest", "reason", "failure", "usable", "reward_sum", "tokens"),
)
"""Columns of `tasks` but `expires`, which every renewal changes and every opening sets."""
_DIGEST = "row_digest"
MARSHAL_VERSION = 2
"""The format that no release of Python has changed."""


def _of(row: str) -> str:
    return f"{_DIGEST}({', '.join(f'{row}.{column}' for column in COLUMNS)})"


DIGESTS = f"""
CREATE TABLE IF NOT EXISTS digests (seq INTEGER PRIMARY KEY, value INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS digest_planned AFTER INSERT ON tasks BEGIN
    INSERT OR REPLACE INTO digests VALUES (NEW.seq, {_of("NEW")});
END;
CREATE TRIGGER IF NOT EXISTS digest_changed AFTER UPDATE OF {", ".join(COLUMNS)} ON tasks BEGIN
    UPDATE digests SET value = {_of("NEW")} WHERE seq = NEW.seq;
END;
"""
_WRONG = f"SELECT seq FROM tasks LEFT JOIN digests USING (seq) WHERE value IS NOT {_of('tasks')} LIMIT 3"
_LOST = "SELECT seq FROM digests LEFT JOIN tasks USING (seq) WHERE tasks.id IS NULL LIMIT 3"
_BODIES = "SELECT seq FROM bodies WHERE file IS NULL AND checksum != body_checksum(body) LIMIT 3"
"""Those of an earlier ledger have no checksum, and NULL differs from nothing."""


def add_functions(db: sqlite3.Connection) -> None:
    """Give a connection the functions that triggers and checks call."""
    db.create_function(_DIGEST, len(COLUMNS), row_digest, deterministic=True)
    db.create_function("body_checksum", 1, body_checksum, deterministic=True)


def row_digest(*values: Any) -> int:
    """Return the digest of a row's values."""
    return zlib.crc32(marshal.dumps(values, MARSHAL_VERSION))


def body_checksum(body: Any) -> int:
    """Return the checksum of a body that is in the ledger itself, -1 of what is none."""
    return zlib.crc32(body) if isinstance(body, bytes) else -1


def damage(db: sqlite3.Connection, counted: str) -> str:
    """Return what is wrong with an open ledger, "" for nothing. counted: selects what `counts` must hold."""
    found = [text for (text,) in db.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        return "; ".join(found)
    for what, query in (
        ("rows of tasks differ from their digests", _WRONG),
        ("rows of tasks are missing", _LOST),
        ("bodies of groups differ from their checksums", _BODIES),
    ):
        try:
            rows = [str(seq) for (seq,) in db.execute(query)]
        except sqlite3.Error as error:
            # A value that no row of ours can hold, such as a text that is no UTF-8.
            return f"{what}: they cannot be read ({error})"
        if rows:
            return f"{what} (numbers {', '.join(rows)})"
    sums = "SELECT state, cause, deadline, tasks, usable, tokens FROM counts WHERE tasks"
    recounted = {(*row[:5], row[6]) for row in db.execute(counted)}
    if recounted != {tuple(row) for row in db.execute(sums)}:
        return "counts of tasks differ from the tasks"
    return ""
