"""The ledger's tables. One row a task; its state says everything that is counted."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from asyncrl.errors import ConfigError

SCHEMA_VERSION = 1

TABLES = """
CREATE TABLE IF NOT EXISTS tasks (
    seq         INTEGER PRIMARY KEY,        -- order of planning
    id          TEXT NOT NULL UNIQUE,
    body        BLOB NOT NULL,              -- the encoded task
    state       TEXT NOT NULL DEFAULT 'pending',
    attempts    INTEGER NOT NULL DEFAULT 0, -- leases lost or failed so far
    lease       TEXT UNIQUE,                -- the newest lease, also the id of its group
    lease_order INTEGER,
    worker      TEXT,
    version     INTEGER,                    -- at admission
    deadline    INTEGER,                    -- last version whose step may train it
    expires     REAL,                       -- monotonic-free wall clock, seconds
    step        INTEGER,                    -- version at the start of the step it is bound to
    reason      TEXT,                       -- of a drop or failure
    failure     TEXT,                       -- class of a failure
    usable      INTEGER NOT NULL DEFAULT 0, -- usable episodes put
    reward_sum  REAL NOT NULL DEFAULT 0,    -- over usable episodes
    tokens      INTEGER NOT NULL DEFAULT 0  -- sampled tokens put, over all attempts
);
CREATE INDEX IF NOT EXISTS tasks_by_state ON tasks (state, seq);
CREATE TABLE IF NOT EXISTS bodies (lease TEXT PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
"""


def open_database(path: str | Path, base_version: int) -> sqlite3.Connection:
    """Open or create a ledger. Raises `ConfigError` naming the file when it cannot be used."""
    try:
        db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False, timeout=10.0)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.executescript(TABLES)
        db.execute("INSERT OR IGNORE INTO facts VALUES ('schema', ?)", (SCHEMA_VERSION,))
        db.execute("INSERT OR IGNORE INTO facts VALUES ('version', ?)", (base_version,))
        db.execute("INSERT OR IGNORE INTO facts VALUES ('closed', 0), ('leases', 0), ('expired', 0)")
        found = db.execute("SELECT value FROM facts WHERE name = 'schema'").fetchone()[0]
    except sqlite3.Error as error:
        raise ConfigError(f"ledger {path}: {error}") from error
    if found != SCHEMA_VERSION:
        raise ConfigError(f"ledger {path}: has schema {found}, this version reads {SCHEMA_VERSION}")
    return db
