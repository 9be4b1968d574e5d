"""What the server writes down, and the tables that hold it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

SCHEMA = """
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
CREATE TABLE IF NOT EXISTS usage (
    client TEXT NOT NULL, day INTEGER NOT NULL, steps INTEGER NOT NULL, trained INTEGER NOT NULL,
    sampled INTEGER NOT NULL, PRIMARY KEY (client, day)
);
CREATE INDEX IF NOT EXISTS of_session ON policies (session);
CREATE INDEX IF NOT EXISTS sampler_of_session ON samplers (session);
"""
ADDED = {
    "sessions": {"finished": "REAL", "client": "TEXT NOT NULL DEFAULT ''"},
    "policies": {"removed": "REAL", "client": "TEXT NOT NULL DEFAULT ''"},
    "checkpoints": {"public": "INTEGER NOT NULL DEFAULT 0"},
}
"""By table, columns that folders of earlier servers lack."""
FORWARD_BACKWARD, OPTIM_STEP = "forward_backward", "optim_step"
SAVE, SAVE_FOR_SAMPLER, SAVE_EXTERNAL, LOAD, CREATE, UNLOAD, SAMPLE = (
    "save_weights",
    "save_for_sampler",
    "save_external",
    "load_weights",
    "create",
    "unload",
    "sample",
)
"""Kinds of requests."""
UNLOADING = ":unload"
"""After a policy's name: the owner of the request that ends it, which has no number among the policy's own."""
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
    removed: float | None = None
    """When its state was deleted, in seconds since 1970; None while it is trained."""
    client: str = ""
    """Whose it is, "" for whoever has the server's token."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's record. kind: "weights" for one to train on from, "sampler_weights" for one to sample from,
    "external_weights" for one to download."""

    policy: str
    kind: str
    name: str
    created: float
    bytes: int
    expires: float | None = None
    about: dict[str, str] | None = None
    public: bool = False

    @property
    def path(self) -> str:
        """Its name for the client."""
        return f"tinker://{self.policy}/{self.kind}/{self.name}"


def request_of(row: sqlite3.Row) -> Request:
    return Request(row["owner"], row["number"], row["kind"], row["body"], row["answer"], row["form"] or "")


def policy_of(row: sqlite3.Row) -> PolicyRecord:
    return PolicyRecord(
        row["id"], row["session"], json.loads(row["settings"]), row["applied"], row["created"], row["used"],
        json.loads(row["about"]), row["removed"], row["client"],
    )  # fmt: skip


def checkpoint_of(row: sqlite3.Row) -> Checkpoint:
    return Checkpoint(
        row["policy"], row["kind"], row["name"], row["created"], row["bytes"], row["expires"], json.loads(row["about"]),
        bool(row["public"]),
    )  # fmt: skip
