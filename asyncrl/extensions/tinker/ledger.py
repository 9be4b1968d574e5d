"""What the server has promised, in one SQLite file: sessions, policies, requests, answers, samplers, checkpoints.

A request is written down before its sender is told that it was received, and its answer together with what it changed.
So a server that is killed goes on where it was: `unanswered` says what is to be done again, and a request that is sent
twice is one request. The SDK numbers the requests of a policy; (policy, number) is a request's name.

    a policy's state     the file STATE of its folder is what requests up to `applied` have made of it
    a request            has an answer, or is to be carried out, in the order of the numbers
    what is deleted      is deleted here first, together with the answer that says so; its files follow
"""

from __future__ import annotations

import json
from typing import Any

from asyncrl.clock import stamp_s
from asyncrl.errors import InputError
from asyncrl.extensions.tinker.database import Database
from asyncrl.extensions.tinker.tables import (
    FAILED,
    FORWARD_BACKWARD,
    JSON,
    Checkpoint,
    PolicyRecord,
    Request,
    checkpoint_of,
    policy_of,
    request_of,
)

DAY_S = 86400
KEPT_ANSWERS = 8192
"""Answers kept of a policy or sampler after newer ones have come: its client has read them long ago. Of a sampler two
thousand may be on their way at once."""
KEPT_ROWS = 256
"""The same of answers with the log-probabilities of a batch, which are large."""
_OF_SESSION = "owner >= ? AND owner < ?"


def _owners(session: str) -> tuple[str, str]:
    """Return the bounds of the owners of a session's requests."""
    return f"{session}:", f"{session};"


class Ledger(Database):
    """Each call is one transaction, or part of one that `together` holds."""

    def add_session(self, name: str, about: dict[str, Any], client: str = "") -> None:
        """client: whose it is, "" for whoever has the server's token."""
        now = stamp_s()
        self.change(
            "INSERT INTO sessions (id, created, seen, about, client) VALUES (?, ?, ?, ?, ?)",
            (name, now, now, json.dumps(about), client),
        )

    def session(self, name: str) -> dict[str, Any] | None:
        """Return `{id, created, seen, about, finished, client}`, None for an unknown one."""
        row = self.row("SELECT * FROM sessions WHERE id = ?", (name,))
        return None if row is None else {**dict(row), "about": json.loads(row["about"])}

    def seen(self, session: str) -> bool:
        """Note that a session's client is there. False for an unknown one."""
        return self.change("UPDATE sessions SET seen = ? WHERE id = ?", (stamp_s(), session)) == 1

    def finish(self, session: str) -> None:
        """Note that a session's client has said that it is done. What it said first counts."""
        self.change(
            "UPDATE sessions SET finished = ? WHERE id = ? AND finished IS NULL", (stamp_s(), session)
        )

    def deserted(self, before: float) -> list[str]:
        """Return the policies with a state whose session is finished, or was heard of last before a moment."""
        found = self.rows(
            "SELECT p.id FROM policies p JOIN sessions s ON s.id = p.session WHERE p.removed IS NULL "
            "AND (s.finished IS NOT NULL OR s.seen < ?)",
            (before,),
        )
        return [row["id"] for row in found]

    def forget_sessions(self, before: float) -> int:
        """Forget sessions that ended before a moment and have nothing left to do: their requests, answers and samplers,
        and those of their policies that have no checkpoints. Return how many."""
        ended = self.rows(
            "SELECT id FROM sessions s WHERE COALESCE(finished, seen) < ? AND NOT EXISTS "
            "(SELECT 1 FROM policies p WHERE p.session = s.id AND p.removed IS NULL)",
            (before,),
        )
        done = [row["id"] for row in ended if not self.count_unanswered(row["id"])]
        for session in done:
            with self.together():
                self.change(f"DELETE FROM requests WHERE {_OF_SESSION}", _owners(session))
                self.change("DELETE FROM samplers WHERE session = ?", (session,))
                self.change("DELETE FROM sessions WHERE id = ?", (session,))
        self.change(
            "DELETE FROM policies WHERE removed IS NOT NULL AND session NOT IN (SELECT id FROM sessions) "
            "AND id NOT IN (SELECT policy FROM checkpoints)"
        )
        return len(done)

    def receive(self, request: Request) -> bool:
        """Write a request down; return whether it is a new one. Raises `InputError` for a different one of its name."""
        with self.together():
            found = self.request(request.owner, request.number)
            if found is None:
                self.change(
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
        row = self.row("SELECT * FROM requests WHERE owner = ? AND number = ?", (owner, number))
        return None if row is None else request_of(row)

    def after(self, owner: str, number: int) -> list[Request]:
        """Return the requests of an owner with higher numbers, in their order."""
        found = self.rows(
            "SELECT * FROM requests WHERE owner = ? AND number > ? ORDER BY number", (owner, number)
        )
        return [request_of(row) for row in found]

    def unanswered(self, kinds: tuple[str, ...]) -> list[Request]:
        """Return all requests of some kinds that have no answer yet."""
        marks = ", ".join("?" * len(kinds))
        found = self.rows(
            f"SELECT * FROM requests WHERE answer IS NULL AND kind IN ({marks}) ORDER BY rowid", kinds
        )
        return [request_of(row) for row in found]

    def count_unanswered(self, session: str) -> int:
        """Return how many requests of a session wait."""
        return self.count(
            f"SELECT COUNT(*) FROM requests WHERE answer IS NULL AND {_OF_SESSION}", _owners(session)
        )

    def answer(self, request: Request, answer: bytes, form: str, drop_body: bool = False) -> None:
        """Write a request's answer down. drop_body: it will not be carried out again."""
        with self.together():
            body = ", body = x''" if drop_body else ""
            self.change(
                f"UPDATE requests SET answer = ?, form = ?{body} WHERE owner = ? AND number = ?",
                (answer, form, request.owner, request.number),
            )
            kept = KEPT_ROWS if request.kind == FORWARD_BACKWARD else KEPT_ANSWERS
            self.change(
                "DELETE FROM requests WHERE owner = ? AND number < ? AND kind = ? AND answer IS NOT NULL "
                "AND body = x''",
                (request.owner, request.number - kept, request.kind),
            )

    def answer_json(self, request: Request, answer: dict[str, Any]) -> None:
        """Write the answer down of a request that will not be carried out again."""
        self.answer(request, json.dumps(answer).encode(), JSON, drop_body=True)

    def add_policy(self, record: PolicyRecord) -> None:
        self.change(
            "INSERT INTO policies (id, session, settings, created, used, applied, about, removed, client) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                record.id,
                record.session,
                json.dumps(record.settings),
                record.created,
                record.used,
                record.applied,
                json.dumps(record.about),
                record.removed,
                record.client,
            ),
        )

    def policy(self, name: str) -> PolicyRecord | None:
        """Return a policy, None for an unknown one."""
        row = self.row("SELECT * FROM policies WHERE id = ?", (name,))
        return None if row is None else policy_of(row)

    def count_trained(self) -> int:
        """Return how many policies have a state that may be trained on."""
        return self.count("SELECT COUNT(*) FROM policies WHERE removed IS NULL")

    def applied(self, policy: str, number: int) -> None:
        """A policy's state file holds what its requests up to `number` have made: none of them is needed again."""
        with self.together():
            self.change("UPDATE policies SET applied = ?, used = ? WHERE id = ?", (number, stamp_s(), policy))
            self.change(
                "UPDATE requests SET body = x'' WHERE owner = ? AND number <= ? AND body != x''",
                (policy, number),
            )

    def remove_policy(self, policy: str, why: bytes) -> None:
        """A policy has no state any more: of its requests the answers stay, and what waits is answered by `why`, JSON
        of a failure. Its checkpoints stay."""
        with self.together():
            self.change("UPDATE policies SET removed = ? WHERE id = ?", (stamp_s(), policy))
            self.change("UPDATE requests SET body = x'' WHERE owner = ? AND body != x''", (policy,))
            self.change(
                "UPDATE requests SET answer = ?, form = ? WHERE owner = ? AND answer IS NULL",
                (why, FAILED, policy),
            )

    def use(self, client: str, steps: int = 0, trained: int = 0, sampled: int = 0) -> None:
        """Count steps and tokens of a client."""
        self.change(
            "INSERT INTO usage (client, day, steps, trained, sampled) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (client, day) DO UPDATE SET steps = steps + excluded.steps, "
            "trained = trained + excluded.trained, sampled = sampled + excluded.sampled",
            (client, stamp_s() // DAY_S, steps, trained, sampled),
        )

    def add_sampler(self, name: str, session: str, adapter: str, path: str) -> None:
        """adapter: the folder of its adapter below the server's, "" for the base model. path: what the client named."""
        self.change(
            "INSERT OR IGNORE INTO samplers (id, session, adapter, path, created) VALUES (?, ?, ?, ?, ?)",
            (name, session, adapter, path, stamp_s()),
        )

    def sampler(self, name: str) -> dict[str, Any] | None:
        """Return `{id, session, adapter, path, created}`, None for an unknown one."""
        row = self.row("SELECT * FROM samplers WHERE id = ?", (name,))
        return None if row is None else dict(row)

    def sampled_adapters(self) -> set[str]:
        """Return the adapters that samplers have."""
        return {row["adapter"] for row in self.rows("SELECT DISTINCT adapter FROM samplers")}

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Note a checkpoint, in the place of one of its name."""
        self.change(
            "INSERT OR REPLACE INTO checkpoints (policy, kind, name, created, bytes, expires, about, public) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                checkpoint.policy,
                checkpoint.kind,
                checkpoint.name,
                checkpoint.created,
                checkpoint.bytes,
                checkpoint.expires,
                json.dumps(checkpoint.about),
                checkpoint.public,
            ),
        )

    def checkpoints(self, policy: str = "") -> list[Checkpoint]:
        """Return the checkpoints of a policy, or all; newest first."""
        where, values = ("WHERE policy = ?", (policy,)) if policy else ("", ())
        found = self.rows(f"SELECT * FROM checkpoints {where} ORDER BY created DESC, rowid DESC", values)
        return [checkpoint_of(row) for row in found]

    def expired(self, now: float) -> list[Checkpoint]:
        """Return the checkpoints whose time is over."""
        return [
            checkpoint_of(row) for row in self.rows("SELECT * FROM checkpoints WHERE expires < ?", (now,))
        ]

    def checkpoint(self, policy: str, kind: str, name: str) -> Checkpoint | None:
        """Return a checkpoint, None for an unknown one."""
        row = self.row(
            "SELECT * FROM checkpoints WHERE policy = ? AND kind = ? AND name = ?", (policy, kind, name)
        )
        return None if row is None else checkpoint_of(row)

    def remove_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.change(
            "DELETE FROM checkpoints WHERE policy = ? AND kind = ? AND name = ?",
            (checkpoint.policy, checkpoint.kind, checkpoint.name),
        )
