"""The task ledger: which tasks there are, who works on them, what became of them. The truth of a run.

    pending --lease--> leased --put--> ready --take--> bound --commit--> trained
       ^                 |  \\
       +--lost, failed---+   +--put--> dropped (no signal, too few usable, too long)
       (a few times, then `failed`)

leased, ready and bound hold a slot. Every move is one SQLite transaction, and every count is a query over states,
so no crash can make a counter drift from the rows. Not thread-safe: one thread uses it.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.buffer.admission import Verdict, judge
from asyncrl.buffer.schema import open_database
from asyncrl.buffer.staleness import Admitted, capacity, choose, deadline
from asyncrl.data.codec import decode_group, decode_task, encode_group, encode_task
from asyncrl.errors import ConflictError, InputError, StaleError
from asyncrl.types import Group, Lease, Task

HOLDING = "('leased', 'ready', 'bound')"


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """The bounds a ledger keeps. `max_tokens` is of one trajectory, `lease_s` in seconds."""

    groups_per_step: int
    max_staleness: int
    group_size: int
    lease_s: float = 120.0
    max_attempts: int = 3
    drop_no_signal: bool = True
    max_tokens: int = 2**24


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a group: `outcome` is "ready", "dropped", "retried" or "failed"."""

    outcome: str
    reason: str = ""
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A step's batch, or what it waits for."""

    groups: list[bytes] | None
    """Encoded groups; [] when the plan is exhausted; None when the step must wait."""
    awaited: tuple[str, ...] = ()


class Ledger:
    """See the module. `path` is a file; ":memory:" serves tests."""

    def __init__(self, path: str | Path, settings: LedgerSettings, base_version: int = 0) -> None:
        self.settings = settings
        self._db = open_database(path, base_version)

    def close(self) -> None:
        self._db.close()

    @property
    def version(self) -> int:
        """The newest version every serving engine has committed."""
        return self._fact("version")

    @property
    def closed(self) -> bool:
        """True when no more tasks will be planned."""
        return bool(self._fact("closed"))

    # -- planning ----------------------------------------------------------------------------------------------

    def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Plan tasks in order; a known id is left as it is. Return how many were new."""
        with self._transaction():
            if self.closed and any(not self._known(task.id) for task in tasks):
                raise ConflictError("the plan is closed; no task can be added")
            before = self._db.total_changes
            self._db.executemany(
                "INSERT OR IGNORE INTO tasks (id, body) VALUES (?, ?)", [(t.id, encode_task(t)) for t in tasks]
            )
            return self._db.total_changes - before

    def close_plan(self) -> None:
        """Say that no more tasks come, so that the last batch may be short."""
        self._db.execute("UPDATE facts SET value = 1 WHERE name = 'closed'")

    # -- leases ------------------------------------------------------------------------------------------------

    def lease(self, worker: str, now: float | None = None) -> Lease | None:
        """Admit the next task, None while all slots are held or no task is pending."""
        s = self.settings
        now = time.time() if now is None else now
        with self._transaction():
            if self._count(HOLDING) >= capacity(s.max_staleness, s.groups_per_step):
                return None
            row = self._db.execute(
                "SELECT seq, body, attempts FROM tasks WHERE state = 'pending' ORDER BY seq LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            seq, body, attempts = row
            lease_id, version = uuid.uuid4().hex, self.version
            due = deadline(version, s.max_staleness)
            self._db.execute("UPDATE facts SET value = value + 1 WHERE name = 'leases'")
            self._db.execute(
                "UPDATE tasks SET state = 'leased', lease = ?, lease_order = ?, worker = ?, version = ?, "
                "deadline = ?, expires = ? WHERE seq = ?",
                (lease_id, self._fact("leases"), worker, version, due, now + s.lease_s, seq),
            )
        return Lease(lease_id, decode_task(body), version, due, s.group_size, attempts + 1, s.lease_s)

    def renew(self, lease: str, now: float | None = None) -> float:
        """Extend a lease; return the seconds it has. Raises `ConflictError` when it is gone."""
        now = time.time() if now is None else now
        with self._transaction():
            changed = self._db.execute(
                "UPDATE tasks SET expires = ? WHERE lease = ? AND state = 'leased'", (now + self.settings.lease_s, lease)
            ).rowcount
        if not changed:
            raise ConflictError(f"lease {lease} has ended")
        return self.settings.lease_s

    def release(self, lease: str) -> None:
        """Give a lease back unused; the task waits again and no attempt is counted. Unknown leases are ignored."""
        self._db.execute("UPDATE tasks SET state = 'pending' WHERE lease = ? AND state = 'leased'", (lease,))

    def expire(self, now: float | None = None) -> int:
        """Return the tasks of leases that ran out; those lost too often are set aside. Return how many ran out."""
        now = time.time() if now is None else now
        with self._transaction():
            rows = self._db.execute(
                "SELECT seq, attempts, worker FROM tasks WHERE state = 'leased' AND expires < ?", (now,)
            ).fetchall()
            for seq, attempts, worker in rows:
                self._retry_or_fail(seq, attempts, "infrastructure", f"lease of worker {worker} expired")
            self._db.execute("UPDATE facts SET value = value + ? WHERE name = 'expired'", (len(rows),))
        return len(rows)

    # -- groups ------------------------------------------------------------------------------------------------

    def put(self, group: Group, body: bytes | None = None) -> PutResult:
        """Accept a finished group, or drop it and free its slot in the same transaction.

        A repeated put of a lease changes nothing and tells what became of the first. Raises `ConflictError` when
        the lease is unknown or has been given to another, `InputError` when the group is not what was leased.
        """
        with self._transaction():
            row = self._db.execute(
                "SELECT seq, id, state, version, attempts, reason FROM tasks WHERE lease = ?", (group.id,)
            ).fetchone()
            if row is None:
                raise ConflictError(f"lease {group.id} is unknown or was given to another worker")
            seq, task_id, state, version, attempts, reason = row
            if state == "pending":
                raise ConflictError(f"lease {group.id} has expired")
            if state != "leased":
                outcome = state if state in ("dropped", "failed") else "ready"
                return PutResult(outcome, reason or "", duplicate=True)
            self._check_group(group, task_id, version)
            verdict = judge(group, self.settings.group_size, self.settings.drop_no_signal, self.settings.max_tokens)
            self._record(seq, verdict)
            if verdict.outcome == "retry":
                kept = self._retry_or_fail(seq, attempts, verdict.failure, verdict.reason)
                return PutResult("retried" if kept else "failed", verdict.reason)
            self._db.execute(
                "UPDATE tasks SET state = ?, reason = ? WHERE seq = ?", (verdict.outcome, verdict.reason, seq)
            )
            if verdict.outcome == "ready":
                self._db.execute(
                    "INSERT OR REPLACE INTO bodies VALUES (?, ?)", (group.id, body or encode_group(group))
                )
            return PutResult(verdict.outcome, verdict.reason)

    def take(self, step: int) -> Taken:
        """Bind the batch of the step that starts at version `step`; the same one when asked again.

        Raises `ConflictError` when `step` is not the committed version, `StaleError` rather than returning a group
        past its deadline.
        """
        s = self.settings
        with self._transaction():
            if step != self.version:
                raise ConflictError(f"step {step} cannot be taken: the committed version is {self.version}")
            bound = self._select("SELECT lease FROM tasks WHERE state = 'bound' AND step = ? ORDER BY lease_order", step)
            if not bound:
                admitted = self._admitted()
                last = self.closed and not self._count("('pending')")
                if last and not admitted:
                    return Taken([])
                choice = choose(admitted, step, s.groups_per_step, last)
                if choice.awaited or not choice.groups:
                    return Taken(None, choice.awaited)
                self._db.executemany(
                    "UPDATE tasks SET state = 'bound', step = ? WHERE lease = ?", [(step, g) for g in choice.groups]
                )
                bound = [(lease,) for lease in choice.groups]
            bodies = [self._body(lease, step) for (lease,) in bound]
        return Taken(bodies)

    def commit(self, version: int) -> None:
        """Account for the step that made `version`: its groups are trained, their slots free. Idempotent.

        Raises `ConflictError` when a version would be skipped.
        """
        with self._transaction():
            current = self.version
            if version <= current:
                return
            if version != current + 1:
                raise ConflictError(f"version {version} cannot follow version {current}")
            self._db.execute(
                "DELETE FROM bodies WHERE lease IN (SELECT lease FROM tasks WHERE state = 'bound' AND step = ?)", (current,)
            )
            self._db.execute("UPDATE tasks SET state = 'trained' WHERE state = 'bound' AND step = ?", (current,))
            self._db.execute("UPDATE facts SET value = ? WHERE name = 'version'", (version,))

    def rollback_to(self, version: int) -> int:
        """Forget everything after `version` was committed; return how many tasks wait again.

        Tasks trained in later steps are planned again, and groups in flight too: their tokens come from versions
        that no longer exist.
        """
        with self._transaction():
            if version > self.version:
                raise ConflictError(f"cannot roll forward from version {self.version} to {version}")
            moved = self._db.execute(
                f"UPDATE tasks SET state = 'pending', step = NULL WHERE state IN {HOLDING} OR (state = 'trained' AND step >= ?)",
                (version,),
            ).rowcount
            self._db.execute("DELETE FROM bodies")
            self._db.execute("UPDATE facts SET value = ? WHERE name = 'version'", (version,))
        return moved

    def stats(self) -> dict[str, Any]:
        """Return the run's counts. `offered_reward_mean` is over all usable episodes put, dropped groups included."""
        states = dict(self._select("SELECT state, COUNT(*) FROM tasks GROUP BY state"))
        dropped = dict(self._select("SELECT reason, COUNT(*) FROM tasks WHERE state = 'dropped' GROUP BY reason"))
        failed = dict(self._select("SELECT failure, COUNT(*) FROM tasks WHERE state = 'failed' GROUP BY failure"))
        usable, reward, tokens = self._select("SELECT SUM(usable), SUM(reward_sum), SUM(tokens) FROM tasks")[0]
        held = sum(states.get(state, 0) for state in ("leased", "ready", "bound"))
        slots = capacity(self.settings.max_staleness, self.settings.groups_per_step)
        return {
            "version": self.version,
            "pending": states.get("pending", 0),
            "in_flight": states.get("leased", 0),
            "ready": states.get("ready", 0),
            "bound": states.get("bound", 0),
            "trained": states.get("trained", 0),
            "dropped": states.get("dropped", 0),
            "failed": states.get("failed", 0),
            "admitted": self._fact("leases"),
            "expired": self._fact("expired"),
            "slots": slots,
            "fill": held / slots,
            "plan_closed": self.closed,
            "dropped_by_reason": dropped,
            "failed_by_class": failed,
            "offered_reward_mean": (reward or 0.0) / usable if usable else None,
            "tokens_generated": tokens or 0,
        }

    def snapshot(self, path: str | Path) -> None:
        """Copy the ledger to another file, consistent even while it is used."""
        target = sqlite3.connect(str(path))
        try:
            self._db.backup(target)
        finally:
            target.close()

    # -- inside ------------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _select(self, query: str, *values: Any) -> list[Any]:
        return self._db.execute(query, values).fetchall()

    def _fact(self, name: str) -> int:
        return self._select("SELECT value FROM facts WHERE name = ?", name)[0][0]

    def _known(self, task_id: str) -> bool:
        return bool(self._select("SELECT 1 FROM tasks WHERE id = ?", task_id))

    def _count(self, states: str) -> int:
        return self._select(f"SELECT COUNT(*) FROM tasks WHERE state IN {states}")[0][0]

    def _admitted(self) -> list[Admitted]:
        rows = self._select("SELECT lease, deadline, lease_order, state FROM tasks WHERE state IN ('leased', 'ready')")
        return [Admitted(lease, due, order, state == "ready") for lease, due, order, state in rows]

    def _body(self, lease: str, step: int) -> bytes:
        body = self._select("SELECT body FROM bodies WHERE lease = ?", lease)[0][0]
        group = decode_group(body)
        oldest = min((t.min_version for t in group.usable), default=step)
        if oldest < step - self.settings.max_staleness:
            raise StaleError(
                f"group {lease} has tokens of version {oldest}; step {step} may train "
                f"{step - self.settings.max_staleness} and newer"
            )
        return body

    def _check_group(self, group: Group, task_id: str, version: int) -> None:
        if group.task.id != task_id:
            raise InputError(f"group.task.id: {group.task.id!r} was not leased under {group.id}; that was {task_id!r}")
        if len(group.trajectories) != self.settings.group_size:
            raise InputError(
                f"group.trajectories: must hold {self.settings.group_size} episodes, got {len(group.trajectories)}"
            )
        newest = self.version + 1
        for t in group.trajectories:
            sampled = t.versions[t.loss_mask]
            if sampled.size and (sampled.min() < version or sampled.max() > newest):
                raise InputError(
                    f"group.trajectories[{t.episode_index}].versions: must be from {version} (admission) to {newest}, "
                    f"got {sampled.min()} to {sampled.max()}"
                )

    def _record(self, seq: int, verdict: Verdict) -> None:
        self._db.execute(
            "UPDATE tasks SET usable = ?, reward_sum = ?, tokens = tokens + ? WHERE seq = ?",
            (verdict.usable, verdict.reward_sum, verdict.tokens, seq),
        )

    def _retry_or_fail(self, seq: int, attempts: int, failure: str, reason: str) -> bool:
        """Count a lost attempt; True when the task waits for another."""
        again = attempts + 1 < self.settings.max_attempts
        self._db.execute(
            "UPDATE tasks SET state = ?, attempts = ?, failure = ?, reason = ? WHERE seq = ?",
            ("pending" if again else "failed", attempts + 1, failure, reason[:2000], seq),
        )
        return again
