"""The second half of a task's way: bound to a step, trained, or planned again after a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncrl.buffer.automatic_admission import Climb
from asyncrl.buffer.leases import seq_of
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.staleness import Admitted, Choice, choose
from asyncrl.buffer.store import Store
from asyncrl.errors import ConflictError, StaleError


@dataclass(frozen=True, slots=True)
class Taken:
    """A step's batch, or what it waits for."""

    groups: list[bytes] | None
    """Encoded groups; [] when the plan is exhausted; None when the step must wait."""
    awaited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peeked:
    """What a step's batch holds so far; nothing is bound."""

    groups: list[bytes]
    """Encoded groups that are ready and were not known to the caller."""
    complete: bool
    """True when `take` would give a batch now."""


class Steps:
    """Binds groups to steps and counts steps. Every method runs inside a transaction of its caller."""

    def __init__(self, store: Store, settings: LedgerSettings) -> None:
        self.store = store
        self.settings = settings
        self.climb = Climb(settings.most_beyond, settings.groups_per_step)

    def take(self, step: int, now: float) -> Taken:
        facts = self.store.facts()
        if step != facts["version"]:
            raise ConflictError(f"step {step} cannot be taken: the committed version is {facts['version']}")
        if facts["taken"] != step:
            _, choice, exhausted = self._outlook(step, bool(facts["closed"]))
            if exhausted:
                return Taken([])
            if not choice.groups:
                if facts["waited"] != step:
                    self.store.set_fact("waited", step)
                return Taken(None, choice.awaited)
            self._bind(choice.groups, step)
            self._adapt(facts["waited"] == step, now)
        return Taken(self._bodies(self._bound()))

    def peek(self, step: int, seen: Sequence[str]) -> Peeked:
        facts = self.store.facts()
        if step != facts["version"]:
            raise ConflictError(
                f"step {step} cannot be looked at: the committed version is {facts['version']}"
            )
        known = set(seen)
        if facts["taken"] == step:
            leases, complete = self._bound(), True
        else:
            admitted, choice, exhausted = self._outlook(step, bool(facts["closed"]))
            complete = bool(choice.groups) or exhausted
            # Under a bound of 0 whatever is ready belongs to this step, chosen or not yet.
            leases = [g.id for g in sorted(admitted, key=lambda g: g.order) if g.ready]
        return Peeked(self._bodies([lease for lease in leases if lease not in known]), complete)

    def _outlook(self, step: int, closed: bool) -> tuple[list[Admitted], Choice, bool]:
        """Return what is admitted, what of it `step` would train, and whether there is nothing left to train."""
        last = closed and not self._any_pending()
        admitted = self._admitted()
        choice = choose(admitted, step, self.settings.groups_per_step, last, self.settings.token_budget)
        return admitted, choice, last and not admitted

    def _bound(self) -> list[str]:
        found = self.store.rows("SELECT lease FROM tasks WHERE state = 'bound' ORDER BY lease_order")
        return [lease for (lease,) in found]

    def _bodies(self, leases: Sequence[str]) -> list[bytes]:
        # One by one: a join that sorts would copy each body.
        query = "SELECT body FROM bodies WHERE seq = ?"
        return [self.store.row(query, seq_of(lease))[0] for lease in leases]

    def _bind(self, leases: Sequence[str], step: int) -> None:
        least = step - self.settings.max_staleness
        for lease in leases:
            seq = seq_of(lease)
            oldest, due = self.store.row("SELECT oldest, deadline FROM tasks WHERE seq = ?", seq)
            if oldest < least or due < step:
                raise StaleError(
                    f"group {lease} has tokens of version {oldest} and was due at step {due}; "
                    f"step {step} may train version {least} and newer"
                )
            self.store.execute("UPDATE tasks SET state = 'bound', step = ? WHERE seq = ?", (step, seq))
        self.store.set_fact("taken", step)

    def _adapt(self, waited: bool, now: float) -> None:
        """Admit more or fewer groups beyond a step's from now on, where that is the ledger's to decide."""
        s = self.settings
        if s.over_provision != "auto":
            return
        left = self.store.row("SELECT COUNT(*) FROM tasks WHERE state = 'ready'")[0]
        tokens = self.store.row("SELECT SUM(tokens) FROM tasks WHERE state = 'bound'")[0]
        beyond = self.climb.after_batch(self.store.fact("beyond"), waited, left, tokens, now)
        self.store.set_fact("beyond", beyond)

    def drop(self, step: int, leases: Sequence[str], reason: str) -> int:
        """Set groups of the batch aside: they count as dropped, not as trained."""
        bound = "WHERE seq = ? AND lease = ? AND state = 'bound' AND step = ?"
        dropped = 0
        for lease in leases:
            seq = seq_of(lease)
            if self.store.execute(
                f"UPDATE tasks SET state = 'dropped', reason = ? {bound}", (reason, seq, lease, step)
            ).rowcount:
                self.store.execute("DELETE FROM bodies WHERE seq = ?", (seq,))
                dropped += 1
        return dropped

    def give_back(self, step: int, leases: Sequence[str]) -> list[str]:
        """Undo the batch of `step`; return who leased the groups in `leases`."""
        bound = "state = 'bound' AND step = ?"
        rows = [
            self.store.row(
                f"SELECT worker FROM tasks WHERE seq = ? AND lease = ? AND {bound}",
                seq_of(lease),
                lease,
                step,
            )
            for lease in leases
        ]
        if any(row is None for row in rows):
            raise ConflictError(f"step {step}: holds no such batch; it may have been given back before")
        self.store.execute(f"UPDATE tasks SET state = 'ready', step = NULL WHERE {bound}", (step,))
        self.store.set_fact("taken", -1)
        return sorted({row[0] for row in rows})

    def commit(self, version: int) -> bool:
        """True when this call moved the version."""
        current = self.store.fact("version")
        if version <= current:
            return False
        if version != current + 1:
            raise ConflictError(f"version {version} cannot follow version {current}")
        if self.store.fact("taken") != current:
            raise ConflictError(
                f"version {version} cannot be committed: no batch was taken for step {current}"
            )
        self.store.execute("DELETE FROM bodies WHERE seq IN (SELECT seq FROM tasks WHERE state = 'bound')")
        self.store.execute("UPDATE tasks SET state = 'trained' WHERE state = 'bound'")
        self.store.set_fact("version", version)
        if not self.settings.recycle:
            self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        begun = self.store.execute("UPDATE tasks SET state = 'pending' WHERE state = 'leased'").rowcount
        self.store.set_fact("restarted", self.store.fact("restarted") + begun)

    def rollback_to(self, version: int) -> int:
        """Return how many tasks wait again."""
        current = self.store.fact("version")
        if version > current:
            raise ConflictError(f"cannot roll forward from version {current} to {version}")
        keeps_batch = version == current
        if not keeps_batch:
            self.store.execute("UPDATE tasks SET state = 'ready', step = NULL WHERE state = 'bound'")
            self.store.set_fact("taken", -1)
        again = self.store.execute(
            "UPDATE tasks SET state = 'pending', step = NULL WHERE state = 'leased' "
            "OR (state = 'ready' AND (newest > ?1 OR version > ?1)) OR (state = 'trained' AND step >= ?1)",
            (version,),
        ).rowcount
        self.store.execute(
            "DELETE FROM bodies WHERE seq NOT IN (SELECT seq FROM tasks WHERE state IN ('ready', 'bound'))"
        )
        self.store.set_fact("version", version)
        return again

    def replan(self) -> int:
        """Plan again whatever is in flight: its deadlines were set under other bounds."""
        self.store.execute("DELETE FROM bodies")
        self.store.set_fact("taken", -1)
        return self.store.execute(
            "UPDATE tasks SET state = 'pending', step = NULL WHERE state IN ('leased', 'ready', 'bound')"
        ).rowcount

    def _admitted(self) -> list[Admitted]:
        rows = self.store.rows(
            "SELECT lease, deadline, lease_order, state = 'ready', tokens FROM tasks "
            "WHERE state IN ('leased', 'ready')"
        )
        return [Admitted(lease, due, order, bool(ready), tokens) for lease, due, order, ready, tokens in rows]

    def _any_pending(self) -> bool:
        return self.store.row("SELECT 1 FROM tasks WHERE state = 'pending' LIMIT 1") is not None
