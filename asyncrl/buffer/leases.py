"""The first half of a task's way: planned, leased, and back again when the lease is lost."""

from __future__ import annotations

import secrets
from typing import Any

from asyncrl.buffer.bodies import Bodies
from asyncrl.buffer.counts import free_slots_of
from asyncrl.buffer.lease_hooks import Hooks, Terms
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.staleness import deadline
from asyncrl.buffer.store import Store
from asyncrl.data.codec import decode_task
from asyncrl.errors import ConflictError, InputError, QuarantineError
from asyncrl.types import FailureClass, Lease

MAX_REASON = 2000


def seq_of(lease: str) -> int:
    """Return the planning order of a lease's task, -1 for what is no lease id."""
    seq = lease.split("-")[0]
    return int(seq) if seq.isascii() and seq.isdigit() and len(seq) < 19 else -1


class UnknownLeaseError(ConflictError):
    """No lease of this id was ever given."""


class LeaseGoneError(ConflictError):
    """The lease expired, was given back or revoked; its task may be leased to another."""


class Leases:
    """Grants, keeps and ends leases. Every method runs inside a transaction of its caller."""

    def __init__(self, store: Store, settings: LedgerSettings, hooks: Hooks, bodies: Bodies) -> None:
        self.store = store
        self.settings = settings
        self.hooks = hooks
        self.bodies = bodies
        self._since: dict[str, float] = {}
        """When leases were granted, or first renewed after a restart."""

    def grant(self, worker: str, request: str, now: float) -> Lease | None:
        """Admit the next task; the same one again for the same `request` of the worker."""
        reason = self.store.row("SELECT reason FROM quarantine WHERE worker = ?", worker)
        if reason is not None:
            raise QuarantineError(f"worker {worker!r} is quarantined: {reason[0]}")
        return self._granted_before(worker, request, now) or self._grant_next(worker, request, now)

    def _granted_before(self, worker: str, request: str, now: float) -> Lease | None:
        if not request:
            return None
        row = self.store.row(
            "SELECT seq, body, lease, version, deadline, attempts, lease_order FROM tasks "
            "WHERE state = 'leased' AND request = ? AND worker = ?",
            request, worker,
        )  # fmt: skip
        if row is None:
            return None
        seq, body, lease, version, due, attempts, order = row
        self._extend(seq, lease, now)
        return self._lease(seq, body, lease, version, due, attempts, order)

    def _lease(
        self, seq: int, body: bytes, lease: str, version: int, due: int, attempts: int, order: int
    ) -> Lease:
        terms = self.terms(seq)
        return Lease(
            id=lease,
            task=decode_task(body),
            version=version,
            deadline=due,
            group_size=terms.group_size,
            attempt=attempts + 1,
            expires_in_s=self.settings.lease_s,
            order=order,
            max_turns=terms.max_turns,
            extras=terms.extras,
        )

    def terms(self, seq: int) -> Terms:
        """Return what a task's group is leased with."""
        return self.hooks.terms(seq, Terms(self.settings.group_size))

    def _grant_next(self, worker: str, request: str, now: float) -> Lease | None:
        s = self.settings
        facts = self.store.facts()
        if facts["paused"] or self.free_slots() <= 0:
            return None
        row = self._next_pending()
        if row is None and self.hooks.plan():
            row = self._next_pending()
        if row is None:
            return None
        seq, body, attempts = row
        order, version = facts["leases"] + 1, facts["version"]
        lease, due = f"{seq}-{order}-{secrets.token_hex(4)}", deadline(version, facts["staleness_limit"])
        self.store.set_fact("leases", order)
        self.hooks.on_grant(seq, version)
        self.store.execute(
            "UPDATE tasks SET state = 'leased', lease = ?, lease_order = ?, request = ?, worker = ?, "
            "version = ?, deadline = ?, expires = ?, step = NULL WHERE seq = ?",
            (lease, order, request, worker, version, due, now + s.lease_s, seq),
        )
        self._since[lease] = now
        return self._lease(seq, body, lease, version, due, attempts, order)

    def _extend(self, seq: int, lease: str, now: float) -> None:
        self._since.setdefault(lease, now)
        self.store.execute("UPDATE tasks SET expires = ? WHERE seq = ?", (now + self.settings.lease_s, seq))

    def _next_pending(self) -> Any:
        return self.store.row(
            "SELECT seq, body, attempts FROM tasks WHERE state = 'pending' ORDER BY seq LIMIT 1"
        )

    def free_slots(self) -> int:
        return free_slots_of(self.store, self.settings)

    def find(self, lease: str, columns: str) -> tuple[Any, ...]:
        """Return `columns` of the task whose newest lease this is.

        Raises `UnknownLeaseError`, or `LeaseGoneError` when the task waits again or has been leased again.
        """
        row = self.store.row(f"SELECT lease, state, {columns} FROM tasks WHERE seq = ?", seq_of(lease))
        if row is None or row[0] is None:
            raise UnknownLeaseError(f"lease {lease[:64]!r} is unknown")
        if row[0] != lease or row[1] == "pending":
            raise LeaseGoneError(f"lease {lease[:64]!r} has ended; its task was given back")
        return row[2:]

    def renew(self, lease: str, now: float) -> float:
        seq, state = self.find(lease, "seq, state")
        if state == "leased":
            self._extend(seq, lease, now)
        elif state == "failed":
            raise LeaseGoneError(f"lease {lease[:64]!r} has ended; its task was set aside as failed")
        return self.settings.lease_s

    def end(self, lease: str, failure: FailureClass | None, error: str) -> str:
        """Give a lease back, with the failure that ended it if there was one; return the task's state.

        Nothing changes when the lease has ended before, so the call can be repeated.
        """
        if failure is FailureClass.AGENT:
            raise InputError(
                "failure: must be 'environment' or 'infrastructure'; an agent's failure is put as a group"
            )
        try:
            seq, state, attempts = self.find(lease, "seq, state, attempts")
        except LeaseGoneError:
            return "pending"
        if state != "leased":
            return state
        if failure is not None:
            return "pending" if self.lose(seq, attempts, failure.value, error) else "failed"
        self.store.execute("UPDATE tasks SET state = 'pending' WHERE seq = ?", (seq,))
        return "pending"

    def lose(self, seq: int, attempts: int, failure: str, reason: str) -> bool:
        """Count a lost attempt; True when the task waits for another."""
        again = attempts + 1 < self.settings.max_attempts
        self.store.execute(
            "UPDATE tasks SET state = ?, attempts = ?, failure = ?, reason = ? WHERE seq = ?",
            ("pending" if again else "failed", attempts + 1, failure, reason[:MAX_REASON], seq),
        )
        return again

    def lose_ready(self, lease: str, reason: str) -> bool:
        """Count a group that is ready as a lost attempt; True when its task waits for another."""
        seq, attempts = self.find(lease, "seq, attempts")
        self.bodies.delete("seq = ?", (seq,))
        return self.lose(seq, attempts, FailureClass.INFRASTRUCTURE.value, reason)

    def expire(self, now: float) -> int:
        rows = self.store.rows(
            "SELECT seq, attempts, worker FROM tasks WHERE state = 'leased' AND expires < ?", now
        )
        for seq, attempts, worker in rows:
            self.lose(seq, attempts, FailureClass.INFRASTRUCTURE.value, f"lease of worker {worker} expired")
        if rows:
            self.store.set_fact("expired", self.store.fact("expired") + len(rows))
        return len(rows) + self._end_old(now)

    def _end_old(self, now: float) -> int:
        """Quarantine workers that have renewed a lease for longer than any group takes; return how many groups that
        plans again.

        Such a worker only keeps others from its tasks.
        """
        life_s, moved = self.settings.lease_life_s, 0
        for lease in [lease for lease, since in self._since.items() if now - since > life_s]:
            del self._since[lease]
            row = self.store.row(
                "SELECT worker FROM tasks WHERE state = 'leased' AND seq = ? AND lease = ?",
                seq_of(lease),
                lease,
            )
            if row is not None:
                reason = f"it has renewed lease {lease} for {life_s:g} s, longer than a group can take"
                moved += self.quarantine(row[0], reason)
        return moved

    def reclaim(self, worker: str) -> int:
        """Count every lease of the worker as a lost attempt."""
        rows = self.store.rows(
            "SELECT seq, attempts FROM tasks WHERE state = 'leased' AND worker = ?", worker
        )
        for seq, attempts in rows:
            self.lose(
                seq, attempts, FailureClass.INFRASTRUCTURE.value, f"worker {worker} died with the lease"
            )
        return len(rows)

    def quarantine(self, worker: str, reason: str) -> int:
        """Return the worker's untaken groups to the plan, and refuse it further leases."""
        self.store.execute("INSERT OR REPLACE INTO quarantine VALUES (?, ?)", (worker, reason[:MAX_REASON]))
        self.bodies.delete("seq IN (SELECT seq FROM tasks WHERE state = 'ready' AND worker = ?)", (worker,))
        return self.store.execute(
            "UPDATE tasks SET state = 'pending' WHERE state IN ('leased', 'ready') AND worker = ?", (worker,)
        ).rowcount

    def blame(self, engine: str, reason: str) -> None:
        """Note that an engine is at fault for the workers that are quarantined for the same reason."""
        self.store.execute(
            "INSERT OR REPLACE INTO faulty_engines VALUES (?, ?)", (engine, reason[:MAX_REASON])
        )

    def readmit_users(self, engine: str) -> list[str]:
        """Readmit the workers that an engine, and no other one, is at fault for; return their names."""
        row = self.store.row("SELECT reason FROM faulty_engines WHERE engine = ?", engine)
        self.store.execute("DELETE FROM faulty_engines WHERE engine = ?", (engine,))
        if row is None or self.store.row("SELECT 1 FROM faulty_engines WHERE reason = ?", row[0]):
            return []
        found = self.store.rows("SELECT worker FROM quarantine WHERE reason = ? ORDER BY worker", row[0])
        self.store.execute("DELETE FROM quarantine WHERE reason = ?", (row[0],))
        return [worker for (worker,) in found]

    def readmit(self, worker: str) -> str:
        """Let a worker have leases again; return why it had none, "" when it was not quarantined."""
        row = self.store.row("SELECT reason FROM quarantine WHERE worker = ?", worker)
        self.store.execute("DELETE FROM quarantine WHERE worker = ?", (worker,))
        return row[0] if row is not None else ""

    def restart(self, now: float) -> None:
        """Give every lease its full time again: another process may have had another clock."""
        self._since.clear()
        self.store.execute(
            "UPDATE tasks SET expires = ? WHERE state = 'leased'", (now + self.settings.lease_s,)
        )
