"""What the server has promised, in one SQLite file: sessions, policies, requests, answers, samplers, checkpoints.

A request is written down before its sender is told that it was received, and its answer together with what it changed.
So a server that is killed goes on where it was: `pending` says what is to be done again, and a request that is sent
twice is one request. The SDK numbers the requests of a policy; (policy, number) is a request's name.

    a policy's state     the file STATE of its folder is what requests up to `applied` have made of it
    a request            has an answer, or is to be carried out, in the order of the numbers
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.clock import stamp_s
from asyncrl.errors import ConfigError, InputError
from asyncrl.file_lock import own

FILE = "tinker.sqlite"
OWNED = "owned"
"""Locked by the server that has the folder, which ends with its process."""
KEPT_ANSWERS = 8192
"""Answers kept of a policy or sampler after newer ones have come: its client has read them long ago. Of a sampler two
thousand may be on their way at once."""
KEPT_ROWS = 256
"""The same of answers with the log-probabilities of a batch, which are large."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, created REAL NOT NULL, seen REAL NOT NULL, about TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS policies (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, settings TEXT NOT NULL, created REAL NOT NULL, used REAL NOT NULL,
    applied INTEGER NOT NULL, about TEXT
);
CREATE TABLE IF NOT EXISTS requests (
    owner TEXT NOT NULL, number INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, answer BLOB, form TEXT,
    PRIMARY KEY (owner, number)
);
CREATE INDEX IF NOT EXISTS unanswered ON requests (owner, number) WHERE answer IS NULL;
CREATE TABLE IF NOT EXISTS samplers (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, adapter TEXT NOT NULL, path TEXT NOT NULL, created REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS checkpoints (
    policy TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL, bytes INTEGER NOT NULL,
    expires REAL, about TEXT, PRIMARY KEY (policy, kind, name)
);
"""
FORWARD_BACKWARD, OPTIM_STEP = "forward_backward", "optim_step"
SAVE, SAVE_FOR_SAMPLER, LOAD, CREATE, SAMPLE = (
    "save_weights",
    "save_for_sampler",
    "load_weights",
    "create",
    "sample",
)
"""Kinds of requests."""
_REQUESTS = "SELECT owner, number, kind, body, answer, form FROM requests"
JSON, PROTO, FAILED = "json", "proto", "failed"
"""Forms of an answer: a JSON text, a message of `wire`, and why there is none, as JSON."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it was received. `answer` is None until it has been carried out."""

    owner: str
    """The policy or sampler that it is for, or the session and slot of a policy that is to be made."""
    number: int
    kind: str
    body: bytes
    answer: bytes | None = None
    form: str = ""

    @property
    def id(self) -> str:
        """Its name for the client."""
        return f"{self.owner}/{self.number}"


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy that a client trains."""

    id: str
    session: str
    settings: dict[str, Any]
    """Its base model, its adapter's rank, seed and layers."""
    applied: int
    """The newest request whose effect is in its state file."""
    created: float
    used: float
    about: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's record. kind: "weights" for one to train on from, "sampler_weights" for one to sample from."""

    policy: str
    kind: str
    name: str
    created: float
    bytes: int
    expires: float | None = None
    about: dict[str, str] | None = None

    @property
    def path(self) -> str:
        """Its name for the client."""
        return f"tinker://{self.policy}/{self.kind}/{self.name}"


class Ledger:
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
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--state {folder}: cannot be the server's folder: {error}") from error
        self._depth = 0

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

    def add_session(self, name: str, about: dict[str, Any]) -> None:
        now = stamp_s()
        with self.together():
            self._db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?)", (name, now, now, json.dumps(about)))

    def seen(self, session: str) -> bool:
        """Note that a session's client is there. False for an unknown one."""
        with self.together():
            changed = self._db.execute("UPDATE sessions SET seen = ? WHERE id = ?", (stamp_s(), session))
            return changed.rowcount == 1

    def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions, newest first."""
        with self._lock:
            found = self._db.execute("SELECT * FROM sessions ORDER BY created DESC").fetchall()
        return [{**dict(row), "about": json.loads(row["about"])} for row in found]

    def receive(self, request: Request) -> bool:
        """Write a request down; return whether it is a new one. Raises `InputError` for a different one of its name."""
        with self.together():
            found = self.request(request.owner, request.number)
            if found is None:
                self._db.execute(
                    "INSERT INTO requests (owner, number, kind, body) VALUES (?, ?, ?, ?)",
                    (request.owner, request.number, request.kind, request.body),
                )
                return True
        # Of one that has been carried out the body is gone.
        if found.kind != request.kind or (found.body and found.body != request.body):
            raise InputError(f"request {request.id}: another request has this number")
        return False

    def request(self, owner: str, number: int) -> Request | None:
        """Return a request, None for an unknown one."""
        with self._lock:
            row = self._db.execute(
                f"{_REQUESTS} WHERE owner = ? AND number = ?",
                (owner, number),
            ).fetchone()
        return None if row is None else _request(row)

    def after(self, owner: str, number: int) -> list[Request]:
        """Return the requests of an owner with higher numbers, in their order."""
        with self._lock:
            found = self._db.execute(
                f"{_REQUESTS} WHERE owner = ? AND number > ? ORDER BY number",
                (owner, number),
            ).fetchall()
        return [_request(row) for row in found]

    def unanswered(self, kinds: tuple[str, ...]) -> list[Request]:
        """Return all requests of some kinds that have no answer yet."""
        marks = ", ".join("?" * len(kinds))
        with self._lock:
            found = self._db.execute(
                f"{_REQUESTS} WHERE answer IS NULL AND kind IN ({marks}) ORDER BY rowid",
                kinds,
            ).fetchall()
        return [_request(row) for row in found]

    def count_unanswered(self, session: str) -> int:
        """Return how many requests of a session wait."""
        with self._lock:
            found = self._db.execute(
                "SELECT COUNT(*) FROM requests WHERE answer IS NULL AND owner >= ? AND owner < ?",
                (f"{session}:", f"{session};"),
            ).fetchone()
        return int(found[0])

    def answer(self, request: Request, answer: bytes, form: str, drop_body: bool = False) -> None:
        """Write a request's answer down. drop_body: it will not be carried out again."""
        with self.together():
            body = ", body = x''" if drop_body else ""
            self._db.execute(
                f"UPDATE requests SET answer = ?, form = ?{body} WHERE owner = ? AND number = ?",
                (answer, form, request.owner, request.number),
            )
            kept = KEPT_ROWS if request.kind == FORWARD_BACKWARD else KEPT_ANSWERS
            self._db.execute(
                "DELETE FROM requests WHERE owner = ? AND number < ? AND kind = ? AND answer IS NOT NULL "
                "AND body = x''",
                (request.owner, request.number - kept, request.kind),
            )

    def add_policy(self, record: PolicyRecord) -> None:
        with self.together():
            self._db.execute(
                "INSERT INTO policies VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    record.id,
                    record.session,
                    json.dumps(record.settings),
                    record.created,
                    record.used,
                    record.applied,
                    json.dumps(record.about),
                ),
            )

    def policy(self, name: str) -> PolicyRecord | None:
        """Return a policy, None for an unknown one."""
        with self._lock:
            row = self._db.execute("SELECT * FROM policies WHERE id = ?", (name,)).fetchone()
        return None if row is None else _policy(row)

    def policies(self) -> list[PolicyRecord]:
        """Return all policies, newest first."""
        with self._lock:
            found = self._db.execute("SELECT * FROM policies ORDER BY created DESC").fetchall()
        return [_policy(row) for row in found]

    def applied(self, policy: str, number: int) -> None:
        """A policy's state file holds what its requests up to `number` have made: none of them is needed again."""
        with self.together():
            self._db.execute(
                "UPDATE policies SET applied = ?, used = ? WHERE id = ?", (number, stamp_s(), policy)
            )
            self._db.execute(
                "UPDATE requests SET body = x'' WHERE owner = ? AND number <= ? AND body != x''",
                (policy, number),
            )

    def remove_policy(self, policy: str) -> None:
        """Forget a policy and its requests; checkpoints stay."""
        with self.together():
            self._db.execute("DELETE FROM policies WHERE id = ?", (policy,))

    def add_sampler(self, name: str, session: str, adapter: str, path: str) -> None:
        """adapter: the folder of its adapter below the server's, "" for the base model. path: what the client named."""
        with self.together():
            self._db.execute(
                "INSERT OR IGNORE INTO samplers VALUES (?, ?, ?, ?, ?)",
                (name, session, adapter, path, stamp_s()),
            )

    def sampler(self, name: str) -> dict[str, Any] | None:
        """Return `{id, session, adapter, path, created}`, None for an unknown one."""
        with self._lock:
            row = self._db.execute("SELECT * FROM samplers WHERE id = ?", (name,)).fetchone()
        return None if row is None else dict(row)

    def samplers(self) -> list[dict[str, Any]]:
        """Return all samplers, newest first."""
        with self._lock:
            return [dict(row) for row in self._db.execute("SELECT * FROM samplers ORDER BY created DESC")]

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Note a checkpoint, in the place of one of its name."""
        with self.together():
            self._db.execute(
                "INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    checkpoint.policy,
                    checkpoint.kind,
                    checkpoint.name,
                    checkpoint.created,
                    checkpoint.bytes,
                    checkpoint.expires,
                    json.dumps(checkpoint.about),
                ),
            )

    def checkpoints(self, policy: str = "") -> list[Checkpoint]:
        """Return the checkpoints of a policy, or all; newest first."""
        where, values = ("WHERE policy = ?", (policy,)) if policy else ("", ())
        with self._lock:
            found = self._db.execute(
                f"SELECT * FROM checkpoints {where} ORDER BY created DESC, rowid DESC", values
            ).fetchall()
        return [_checkpoint(row) for row in found]

    def checkpoint(self, policy: str, kind: str, name: str) -> Checkpoint | None:
        """Return a checkpoint, None for an unknown one."""
        with self._lock:
            row = self._db.execute(
                "SELECT * FROM checkpoints WHERE policy = ? AND kind = ? AND name = ?", (policy, kind, name)
            ).fetchone()
        return None if row is None else _checkpoint(row)

    def remove_checkpoint(self, checkpoint: Checkpoint) -> None:
        with self.together():
            self._db.execute(
                "DELETE FROM checkpoints WHERE policy = ? AND kind = ? AND name = ?",
                (checkpoint.policy, checkpoint.kind, checkpoint.name),
            )


def _request(row: sqlite3.Row) -> Request:
    return Request(row["owner"], row["number"], row["kind"], row["body"], row["answer"], row["form"] or "")


def _policy(row: sqlite3.Row) -> PolicyRecord:
    return PolicyRecord(
        row["id"], row["session"], json.loads(row["settings"]), row["applied"], row["created"], row["used"],
        json.loads(row["about"]),
    )  # fmt: skip


def _checkpoint(row: sqlite3.Row) -> Checkpoint:
    return Checkpoint(
        row["policy"], row["kind"], row["name"], row["created"], row["bytes"], row["expires"], json.loads(row["about"])
    )  # fmt: skip
