"""The ledger's tables. One row a task; its state says everything that is counted, and triggers keep the counts."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from asyncrl.buffer.integrity import DIGESTS, add_functions, damage
from asyncrl.errors import ConfigError

SCHEMA_VERSION = 5
PRAGMAS = {
    "page_size": 8192,  # long groups cost a quarter less than in pages of 4 KiB, short ones hardly more
    "locking_mode": "EXCLUSIVE",
    "journal_mode": "WAL",
    "synchronous": "NORMAL",
    "wal_autocheckpoint": 2048,  # pages, so 16 MiB: four times as many take four times as long
    "cache_size": -65536,  # KiB; a transaction larger than the cache is written twice
}

TABLES = """
CREATE TABLE IF NOT EXISTS tasks (
    seq         INTEGER PRIMARY KEY,        -- order of planning
    id          TEXT NOT NULL UNIQUE,
    body        BLOB NOT NULL,              -- the encoded task
    state       TEXT NOT NULL DEFAULT 'pending',
    attempts    INTEGER NOT NULL DEFAULT 0, -- leases lost or failed so far
    lease       TEXT,                       -- the newest lease, also the id of its group
    lease_order INTEGER,                    -- counts leases over the run
    request     TEXT,                       -- the call that got the lease, so that it can be repeated
    worker      TEXT,
    version     INTEGER,                    -- at admission
    deadline    INTEGER,                    -- last version whose step may train it
    expires     REAL,                       -- monotonic clock, seconds; reset when the ledger is opened
    step        INTEGER,                    -- version at the start of the step that took it
    oldest      INTEGER,                    -- lowest version among the group's sampled tokens
    newest      INTEGER,                    -- highest one
    reason      TEXT,                       -- of a drop or failure
    failure     TEXT,                       -- class of a failure
    usable      INTEGER NOT NULL DEFAULT 0, -- usable episodes put
    reward_sum  REAL NOT NULL DEFAULT 0,    -- over usable episodes
    tokens      INTEGER NOT NULL DEFAULT 0  -- sampled tokens put, over all attempts
);
CREATE INDEX IF NOT EXISTS tasks_by_state ON tasks (state, seq);
CREATE INDEX IF NOT EXISTS leases_by_request ON tasks (request) WHERE state = 'leased';
CREATE INDEX IF NOT EXISTS leases_by_expiry ON tasks (expires) WHERE state = 'leased';
CREATE INDEX IF NOT EXISTS leases_by_worker ON tasks (worker) WHERE state = 'leased';
CREATE INDEX IF NOT EXISTS ready_by_newest ON tasks (newest) WHERE state = 'ready';
-- Encoded groups that are ready or taken; a large one is in a file, see `body_files`.
CREATE TABLE IF NOT EXISTS bodies (
    seq      INTEGER PRIMARY KEY,
    body     BLOB NOT NULL,
    file     INTEGER,
    size     INTEGER,
    checksum INTEGER                        -- of the file's first `size` bytes
);
CREATE TABLE IF NOT EXISTS quarantine (worker TEXT PRIMARY KEY, reason TEXT NOT NULL);
-- Engines at fault for the quarantine of the workers with the same reason.
CREATE TABLE IF NOT EXISTS faulty_engines (engine TEXT PRIMARY KEY, reason TEXT NOT NULL);
-- Episodes that failed by no fault of the policy, over all attempts, with the error of the first and
-- the newest one of each class.
CREATE TABLE IF NOT EXISTS failures (
    failure  TEXT PRIMARY KEY,
    episodes INTEGER NOT NULL,
    groups   INTEGER NOT NULL,              -- groups that were lost by it
    first    TEXT NOT NULL,
    newest   TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""


def _key(row: str) -> str:
    """The key in `counts` of a row of tasks. Only groups that hold a slot are told apart by deadline."""
    return (
        f"{row}.state, CASE {row}.state WHEN 'dropped' THEN coalesce({row}.reason, '') "
        f"WHEN 'failed' THEN coalesce({row}.failure, '') ELSE '' END, "
        f"CASE WHEN {row}.state IN ('leased', 'ready', 'taken') THEN {row}.deadline ELSE -1 END"
    )


COUNTED = (
    f"SELECT {_key('tasks')}, COUNT(*), SUM(usable), SUM(reward_sum), SUM(tokens) FROM tasks GROUP BY 1, 2, 3"
)
"""What `counts` holds, counted anew."""

COUNTS = f"""
-- Sums over tasks, kept by the triggers below in the transaction that changes the tasks.
CREATE TABLE IF NOT EXISTS counts (
    state      TEXT NOT NULL,
    cause      TEXT NOT NULL,               -- reason of a drop, class of a failure, or ''
    deadline   INTEGER NOT NULL,            -- -1 for groups that hold no slot
    tasks      INTEGER NOT NULL,
    usable     INTEGER NOT NULL,
    reward_sum REAL NOT NULL,
    tokens     INTEGER NOT NULL,
    PRIMARY KEY (state, cause, deadline)
) WITHOUT ROWID;
INSERT OR IGNORE INTO counts VALUES ('pending', '', -1, 0, 0, 0, 0);
CREATE TRIGGER IF NOT EXISTS count_planned AFTER INSERT ON tasks BEGIN
    UPDATE counts SET tasks = tasks + 1 WHERE (state, cause, deadline) = ('pending', '', -1);
END;
CREATE TRIGGER IF NOT EXISTS count_changed
AFTER UPDATE OF state, deadline, reason, failure, usable, reward_sum, tokens ON tasks BEGIN
    UPDATE counts SET tasks = tasks - 1, usable = usable - OLD.usable, reward_sum = reward_sum - OLD.reward_sum,
        tokens = tokens - OLD.tokens WHERE (state, cause, deadline) = ({_key("OLD")});
    INSERT INTO counts VALUES ({_key("NEW")}, 1, NEW.usable, NEW.reward_sum, NEW.tokens)
        ON CONFLICT DO UPDATE SET tasks = tasks + 1, usable = usable + NEW.usable,
        reward_sum = reward_sum + NEW.reward_sum, tokens = tokens + NEW.tokens;
    DELETE FROM counts WHERE (state, cause, deadline) = ({_key("OLD")}) AND tasks = 0 AND deadline >= 0;
END;
"""


def open_database(path: str | Path, base_version: int) -> sqlite3.Connection:
    """Open or create a ledger. Raises `ConfigError` naming the file when it cannot be used.

    The file is locked for this process alone: a second buffer on it is refused. WAL with synchronous=NORMAL
    keeps every transaction through the death of the process, and a consistent ledger through the loss of
    power.
    """
    try:
        db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=1.0)
    except sqlite3.Error as error:
        raise ConfigError(f"ledger {path}: {error}; check that its folder exists") from error
    try:
        add_functions(db)
        for name, value in PRAGMAS.items():
            db.execute(f"PRAGMA {name}={value}")
        db.executescript(f"BEGIN IMMEDIATE; {TABLES} {COUNTS} {DIGESTS} COMMIT;")
        wrong = damage(db, COUNTED)
        first = {"schema": SCHEMA_VERSION, "version": base_version, "closed": 0, "paused": 0}
        steps = {"taken_step": -1, "waited_step": -1, "over_provision": -1}
        counted = {"leases": 0, "expired": 0, "restarted": 0, "episodes": 0, "no_signal": 0}
        for name, value in (first | steps | counted).items():
            db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
        found = db.execute("SELECT value FROM facts WHERE name = 'schema'").fetchone()[0]
    except (sqlite3.Error, ValueError, OverflowError, TypeError) as error:
        db.close()
        hint = "; another buffer uses it" if "locked" in str(error) else ""
        raise ConfigError(f"ledger {path}: {error}{hint}") from error
    if wrong and found == SCHEMA_VERSION:
        db.close()
        raise ConfigError(
            f"ledger {path}: is damaged: {wrong}. Put a sound copy in its place, or start another run from the newest "
            "checkpoint of this one (model.path); what a damaged ledger says of tasks and steps cannot be trusted"
        )
    if found != SCHEMA_VERSION:
        db.close()
        raise ConfigError(f"ledger {path}: has schema {found}, this version reads {SCHEMA_VERSION}")
    return db
