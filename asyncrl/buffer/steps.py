"""The second half of a task's way: taken by a step, trained, or planned again after a rollback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncrl.buffer.bodies import Bodies, Stored
from asyncrl.buffer.body_files import FileBody
from asyncrl.buffer.counts import by_deadline, in_state
from asyncrl.buffer.lease_hooks import Hooks
from asyncrl.buffer.leases import seq_of
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.staleness import Admitted, Choice, can_choose, choose
from asyncrl.buffer.store import Store
from asyncrl.errors import ConflictError, StaleError


@dataclass(frozen=True, slots=True)
class Taken:
    """A step's batch, or what it waits for."""

    groups: Sequence[Stored] | None
    """Bodies of groups; [] when the plan is exhausted; None when the step must wait."""
    awaited: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peeked:
    """What a step's batch holds so far; nothing is taken."""

    groups: Sequence[Stored]
    """Bodies of groups that are ready and were not known to the caller."""
    complete: bool
    """True when `take` would give a batch now."""


class Steps:
    """Gives groups to steps and counts steps. Every method runs inside a transaction of its caller.

    While version k + 1 is on its way to the engines, the ledger is at version k with the batch of step k taken, and the
    batch of step k + 1 may be taken ahead. Slots are freed by the commit alone: until then what is admitted is due by
    k + S, and with the batch of step k still in its slots the steps from k + 1 to k + S can train all of it.
    """

    def __init__(self, store: Store, settings: LedgerSettings, hooks: Hooks, bodies: Bodies) -> None:
        self.store = store
        self.settings = settings
        self.hooks = hooks
        self.bodies = bodies

    def take(self, step: int, now: float) -> Taken:
        facts = self.store.facts()
        if not _may_take(step, facts):
            raise ConflictError(f"step {step} cannot be taken: the committed version is {facts['version']}")
        if facts["taken_step"] < step:
            _, choice, exhausted = self._outlook(step, bool(facts["closed"]))
            if exhausted:
                return Taken([])
            if not choice.groups:
                if facts["waited_step"] != step:
                    self.store.set_fact("waited_step", step)
                return Taken(None, choice.awaited)
            self._mark_taken(choice.groups, step)
            self.hooks.on_take(step, facts["waited_step"] == step, now)
        return Taken(self._bodies(self._taken(step)))

    def answers(self, step: int) -> bool:
        """True when `take` would not have to wait; also when it would raise. Reads no group."""
        facts = self.store.facts()
        if not _may_take(step, facts) or facts["taken_step"] >= step:
            return True
        s = self.settings
        last = bool(facts["closed"]) and not self._any_pending()
        ready, unfinished = by_deadline(self.store, "ready"), by_deadline(self.store, "leased")
        _, tokens = in_state(self.store, "ready")
        return can_choose(ready, unfinished, tokens, step, s.groups_per_step, last, s.early_end)

    def peek(self, step: int, seen: Sequence[str]) -> Peeked:
        facts = self.store.facts()
        if step != facts["version"]:
            raise ConflictError(
                f"step {step} cannot be peeked at: the committed version is {facts['version']}"
            )
        known = set(seen)
        if facts["taken_step"] == step:
            leases, complete = self._taken(step), True
        else:
            admitted, choice, exhausted = self._outlook(step, bool(facts["closed"]))
            complete = bool(choice.groups) or exhausted
            # Under a limit of 0 every ready group belongs to this step, chosen already or not.
            leases = [g.id for g in sorted(admitted, key=lambda g: g.order) if g.ready]
        return Peeked(self._bodies([lease for lease in leases if lease not in known]), complete)

    def _outlook(self, step: int, closed: bool) -> tuple[list[Admitted], Choice, bool]:
        """Return what is admitted, what of it `step` would train, and whether there is nothing left to train."""
        last = closed and not self._any_pending()
        admitted = self._admitted()
        choice = choose(admitted, step, self.settings.groups_per_step, last, self.settings.early_end)
        return admitted, choice, last and not admitted

    def _taken(self, step: int) -> list[str]:
        found = self.store.rows(
            "SELECT lease FROM tasks WHERE state = 'taken' AND step = ? ORDER BY lease_order", step
        )
        return [lease for (lease,) in found]

    def _bodies(self, leases: Sequence[str]) -> list[Stored]:
        # One by one: a join that sorts would copy each body.
        return [self.bodies.find(seq_of(lease)) for lease in leases]

    def _mark_taken(self, leases: Sequence[str], step: int) -> None:
        least = step - self.settings.max_staleness
        for lease in leases:
            seq = seq_of(lease)
            oldest, due = self.store.row("SELECT oldest, deadline FROM tasks WHERE seq = ?", seq)
            if oldest < least or due < step:
                raise StaleError(
                    f"group {lease} has tokens of version {oldest} and was due at step {due}; "
                    f"step {step} may train version {least} and newer"
                )
            self.store.execute("UPDATE tasks SET state = 'taken', step = ? WHERE seq = ?", (step, seq))
        self.store.set_fact("taken_step", step)

    def drop(self, step: int, leases: Sequence[str], reason: str) -> int:
        """Set groups of the batch aside: they count as dropped, not as trained."""
        in_batch = "WHERE seq = ? AND lease = ? AND state = 'taken' AND step = ?"
        dropped = 0
        for lease in leases:
            seq = seq_of(lease)
            if self.store.execute(
                f"UPDATE tasks SET state = 'dropped', reason = ? {in_batch}", (reason, seq, lease, step)
            ).rowcount:
                self.bodies.delete("seq = ?", (seq,))
                dropped += 1
        return dropped

    def leased_by(self, step: int) -> dict[str, str]:
        """Return by its lease who leased each group of a taken batch."""
        return dict(
            self.store.rows("SELECT lease, worker FROM tasks WHERE state = 'taken' AND step = ?", step)
        )

    def give_back(self, step: int, leases: Sequence[str]) -> list[str]:
        """Undo the batch of `step`; return who leased the groups in `leases`."""
        in_batch = "state = 'taken' AND step = ?"
        rows = [
            self.store.row(
                f"SELECT worker FROM tasks WHERE seq = ? AND lease = ? AND {in_batch}",
                seq_of(lease),
                lease,
                step,
            )
            for lease in leases
        ]
        if any(row is None for row in rows):
            raise ConflictError(f"step {step}: no such batch is taken; it may have been given back before")
        self._untake(step)
        return sorted({row[0] for row in rows})

    def lose(self, bodies: Sequence[FileBody]) -> int:
        """Plan the tasks again whose groups' bodies are lost, and undo a batch with one of them; return how many."""
        again, undone = 0, set()
        for body in bodies:
            row = self.store.row(
                "SELECT seq, CASE state WHEN 'taken' THEN step END FROM tasks JOIN bodies USING (seq) "
                "WHERE file = ? AND checksum = ?",
                body.file, body.checksum,
            )  # fmt: skip
            if row is None:
                continue
            again += 1
            if row[1] is not None:
                undone.add(row[1])
            self.store.execute("UPDATE tasks SET state = 'pending', step = NULL WHERE seq = ?", (row[0],))
            self.bodies.delete("seq = ?", (row[0],))
        if undone:
            self._untake(min(undone))
        return again

    def _untake(self, step: int) -> None:
        """Undo the batch of `step` and of the step after it, if they are taken."""
        facts = self.store.facts()
        self.store.execute(
            "UPDATE tasks SET state = 'ready', step = NULL WHERE state = 'taken' AND step >= ?", (step,)
        )
        # The batch before an undone one that was taken ahead stays with the version on its way.
        left = step - 1 if step > facts["version"] else -1
        self.store.set_fact("taken_step", min(facts["taken_step"], left))

    def commit(self, version: int) -> bool:
        """True when this call moved the version."""
        current = self.store.fact("version")
        if version <= current:
            return False
        if version != current + 1:
            raise ConflictError(f"version {version} cannot follow version {current}")
        if self.store.fact("taken_step") < current:
            raise ConflictError(
                f"version {version} cannot be committed: no batch was taken for step {current}"
            )
        trained = "state = 'taken' AND step = ?"
        self.bodies.delete(f"seq IN (SELECT seq FROM tasks WHERE {trained})", (current,))
        self.store.execute(f"UPDATE tasks SET state = 'trained' WHERE {trained}", (current,))
        self.store.set_fact("version", version)
        self.store.set_fact("no_signal", 0)
        self.hooks.on_commit(current)
        return True

    def rollback_to(self, version: int) -> int:
        """Return how many tasks are planned again."""
        current = self.store.fact("version")
        if version > current:
            raise ConflictError(f"cannot roll forward from version {current} to {version}")
        # The batch of `current` stays taken where no later version was committed; one that was taken ahead does not.
        self._untake(current + 1 if version == current else current)
        again = self.store.execute(
            "UPDATE tasks SET state = 'pending', step = NULL WHERE state = 'leased' "
            "OR (state = 'ready' AND (newest > ?1 OR version > ?1)) OR (state = 'trained' AND step >= ?1)",
            (version,),
        ).rowcount
        self.bodies.delete("seq NOT IN (SELECT seq FROM tasks WHERE state IN ('ready', 'taken'))")
        self.store.set_fact("version", version)
        self.hooks.on_rollback(version)
        return again

    def replan(self) -> int:
        """Plan everything in flight again: its deadlines were set under other limits."""
        self.bodies.delete()
        self.store.set_fact("taken_step", -1)
        return self.store.execute(
            "UPDATE tasks SET state = 'pending', step = NULL WHERE state IN ('leased', 'ready', 'taken')"
        ).rowcount

    def _admitted(self) -> list[Admitted]:
        rows = self.store.rows(
            "SELECT lease, deadline, lease_order, state = 'ready', tokens FROM tasks "
            "WHERE state IN ('leased', 'ready')"
        )
        return [Admitted(lease, due, order, bool(ready), tokens) for lease, due, order, ready, tokens in rows]

    def _any_pending(self) -> bool:
        return in_state(self.store, "pending")[0] > 0


def _may_take(step: int, facts: Mapping[str, int]) -> bool:
    """True for the step of the committed version, and for the next one once that one has its batch."""
    version = facts["version"]
    return step == version or (step == version + 1 and facts["taken_step"] >= version)
