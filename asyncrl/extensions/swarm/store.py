"""The groups that runs share, in one SQLite file of bounded size. The oldest make room for new ones."""

from __future__ import annotations

import sqlite3
import threading
import uuid
from pathlib import Path
from typing import Any

import xxhash

from asyncrl.errors import ConfigError
from asyncrl.extensions.swarm.messages import MAX_ANSWER_BYTES, Fetch, Publish

FILE = "swarm.sqlite"
MAX_BYTES = 256 * 2**20
"""The most bytes of all groups."""
MAX_OF_RUN = 1024
"""Groups of one run, so that none pushes out the others'."""
MAX_RUNS = 256
_SCHEMA = """
CREATE TABLE IF NOT EXISTS store (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS groups (
    number INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL, name TEXT NOT NULL, family TEXT NOT NULL,
    digest TEXT NOT NULL, body BLOB NOT NULL, UNIQUE (run, digest)
);
CREATE INDEX IF NOT EXISTS of_family ON groups (family, number);
"""


class Store:
    """For any thread. It never reads what is in a group: those who fetch one check it themselves."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, max_of_run: int = MAX_OF_RUN) -> None:
        self.max_bytes, self.max_of_run = max_bytes, max_of_run
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(folder / FILE, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(_SCHEMA)
            found = self._db.execute("SELECT id FROM store").fetchone()
            self.id = found[0] if found else uuid.uuid4().hex
            if not found:
                with self._db:
                    self._db.execute("INSERT INTO store VALUES (?)", (self.id,))
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--state {folder}: holds no shared groups and takes none: {error}") from error

    def publish(self, message: Publish) -> dict[str, Any]:
        """Keep groups; return how many are new. A repeated call adds none."""
        with self._lock, self._db:
            before = self._db.total_changes
            for body in message.groups:
                digest = xxhash.xxh3_128_hexdigest(body)
                self._db.execute(
                    "INSERT OR IGNORE INTO groups (run, name, family, digest, body) VALUES (?, ?, ?, ?, ?)",
                    (message.run, message.name, message.family, digest, body),
                )
            stored = self._db.total_changes - before
            self._make_room(message.run)
        return {"stored": stored}

    def _make_room(self, run: str) -> None:
        self._db.execute(
            "DELETE FROM groups WHERE run = ? AND number NOT IN "
            "(SELECT number FROM groups WHERE run = ? ORDER BY number DESC LIMIT ?)",
            (run, run, self.max_of_run),
        )
        self._db.execute(
            "DELETE FROM groups WHERE number IN (SELECT number FROM (SELECT number, SUM(LENGTH(body)) OVER "
            "(ORDER BY number DESC) AS bytes FROM groups) WHERE bytes > ?)",
            (self.max_bytes,),
        )
        self._db.execute(
            "DELETE FROM groups WHERE run NOT IN "
            "(SELECT run FROM groups GROUP BY run ORDER BY MAX(number) DESC LIMIT ?)",
            (MAX_RUNS,),
        )

    def fetch(self, message: Fetch) -> dict[str, Any]:
        """Return the newest groups of other runs of the family, newest first, and where the next call goes on."""
        after = message.after if message.store == self.id else 0
        with self._lock:
            (last,) = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM groups").fetchone()
            found = self._db.execute(
                "SELECT run, name, body FROM groups WHERE family = ? AND number > ? AND run != ? "
                "ORDER BY number DESC LIMIT ?",
                (message.family, after, message.run, message.count),
            )
            groups: list[dict[str, Any]] = []
            room = MAX_ANSWER_BYTES
            for run, name, body in found:
                room -= len(body)
                if groups and room < 0:
                    break
                groups.append({"run": run, "name": name, "body": body})
        return {"store": self.id, "last": max(after, last), "groups": groups}

    def status(self) -> dict[str, Any]:
        """Return how many groups of which runs there are."""
        with self._lock:
            rows = self._db.execute(
                "SELECT run, MAX(name), COUNT(*), SUM(LENGTH(body)) FROM groups GROUP BY run ORDER BY run"
            ).fetchall()
        return {
            "store": self.id,
            "runs": [{"run": run, "name": name, "groups": n, "bytes": size} for run, name, n, size in rows],
        }

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()
