"""The task ledger: which tasks there are, which worker plays them, what became of them. The source of truth of a run.

    pending --lease--> leased --put--> ready --take--> taken --commit--> trained
       ^                 |  \\
       +--lost, failed---+   +--put--> dropped (no signal, too few usable, too long)
       (a few times, then `failed`)

leased, ready and taken hold a slot. Every move is one SQLite transaction, in which triggers also move the counts, so
no crash can make a counter drift from the rows. Not thread-safe: one thread uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from asyncrl.buffer.bodies import Bodies, Stored
from asyncrl.buffer.body_files import BodyFiles, FileBody
from asyncrl.buffer.counts import count, held, in_state
from asyncrl.buffer.hooks.of_settings import hooks_of_settings
from asyncrl.buffer.lease_hooks import HookFactory, Hooks, LeaseHook
from asyncrl.buffer.leases import LeaseGoneError, Leases, UnknownLeaseError, seq_of
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.put import PutResult, Puts, admit
from asyncrl.buffer.steps import Peeked, Steps, Taken
from asyncrl.buffer.store import Follower, Store
from asyncrl.clock import now_s
from asyncrl.data.codec import encode_task
from asyncrl.errors import ConflictError, InputError
from asyncrl.types import FailureClass, Group, Lease, Task

__all__ = [
    "LeaseGoneError",
    "Ledger",
    "LedgerSettings",
    "Peeked",
    "PutResult",
    "Taken",
    "UnknownLeaseError",
]


Hook = TypeVar("Hook", bound=LeaseHook)


class Ledger:
    """See the module. `path` is a file; ":memory:" serves tests. Times are monotonic seconds.

    Opening a ledger under another `groups_per_step` or `max_staleness` plans the groups in flight again.
    follower: nothing is acknowledged before it has it, too.
    hooks: make what has a say in leases and sees what becomes of them (see `lease_hooks`), the first asked first.
    Every method may raise `UnavailableError` when the disk does not take the change; nothing has changed
    then.
    """

    def __init__(
        self,
        path: str | Path,
        settings: LedgerSettings,
        base_version: int = 0,
        now: float | None = None,
        hooks: Sequence[HookFactory] = (),
        follower: Follower | None = None,
    ) -> None:
        self.settings = settings
        self._store = Store(path, base_version, follower)
        copy = None if follower is None else follower.bodies
        files = None if str(path) == ":memory:" else BodyFiles(body_folder(path), copy)
        self._bodies = Bodies(self._store, files)
        self._hooks = Hooks([make(self._store, settings) for make in (*hooks, *hooks_of_settings(settings))])
        self._leases = Leases(self._store, settings, self._hooks, self._bodies)
        self._puts = Puts(self._store, settings, self._leases)
        self._steps = Steps(self._store, settings, self._hooks, self._bodies)
        with self._store.transaction():
            self._leases.restart(_or_clock(now))
            self._adopt_limits()

    def close(self) -> None:
        self._bodies.close()
        self._store.close()

    def batch(self) -> AbstractContextManager[None]:
        """One transaction around several calls: they reach the disk together, or none does."""
        return self._store.transaction()

    @property
    def version(self) -> int:
        """The newest version every serving engine has committed."""
        return self._store.fact("version")

    @property
    def closed(self) -> bool:
        """True when no more tasks will be planned."""
        return bool(self._store.fact("closed"))

    @property
    def finished(self) -> bool:
        """True when the plan is closed and every task of it is trained, dropped or failed."""
        return self.closed and not held(self._store) and not in_state(self._store, "pending")[0]

    def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Plan tasks in order; a known id is left as it is. Return how many were new.

        Raises `ConflictError` for a new task when the plan is closed.
        """
        with self._store.transaction():
            if self.closed and any(not self._known(task.id) for task in tasks):
                raise ConflictError("the plan is closed; no task can be added")
            return self._store.executemany(
                "INSERT OR IGNORE INTO tasks (id, body) VALUES (?, ?)",
                [(t.id, encode_task(t)) for t in tasks],
            )

    def hook(self, kind: type[Hook]) -> Hook | None:
        """Return the ledger's hook of this kind, None without one. Its methods run inside a `batch`."""
        return next((hook for hook in self._hooks.hooks if isinstance(hook, kind)), None)

    def close_plan(self, abandon: bool = False, most: int = -1) -> int:
        """Declare the plan complete, so that the last batch may be short.

        With `abandon` the tasks that still wait are dropped, at most `most` of them in this call unless it is -1.
        Return how many.
        """
        with self._store.transaction():
            self._store.set_fact("closed", 1)
            if not abandon:
                return 0
            return self._store.execute(
                "UPDATE tasks SET state = 'dropped', reason = 'abandoned' WHERE seq IN "
                "(SELECT seq FROM tasks WHERE state = 'pending' ORDER BY seq LIMIT ?)",
                (most,),
            ).rowcount

    def pause(self, paused: bool) -> None:
        """Grant no leases until called with False. Leases already held stay valid."""
        with self._store.transaction():
            self._store.set_fact("paused", int(paused))

    def set_staleness_limit(self, limit: int) -> None:
        """Admit groups under this staleness limit from now on, at most `settings.max_staleness`.

        Groups admitted before keep their deadlines. Raises `InputError` outside the range.
        """
        if not 0 <= limit <= self.settings.max_staleness:
            raise InputError(
                f"the staleness limit must be from 0 to max_staleness={self.settings.max_staleness}, got {limit}"
            )
        with self._store.transaction():
            self._store.set_fact("staleness_limit", limit)

    def lease(self, worker: str, now: float | None = None, request: str = "") -> Lease | None:
        """Admit the next task; None while nothing can be leased, `why_no_lease` says why.

        request: names the call; a repeat by the same worker gets the same lease while it is valid.
        Raises `QuarantineError` for a quarantined worker.
        """
        with self._store.transaction():
            return self._leases.grant(worker, request, _or_clock(now))

    def why_no_lease(self) -> str:
        """ "" when a lease can be had, else "paused", "full", "finished" or "no tasks"."""
        if self._store.fact("paused"):
            return "paused"
        if self._leases.free_slots() <= 0:
            return "full"
        if in_state(self._store, "pending")[0]:
            return ""
        return "finished" if self.finished else "no tasks"

    def check_holder(self, lease: str, worker: str) -> None:
        """Raise `ConflictError` when another worker holds, or held, this lease; an unknown one raises elsewhere."""
        row = self._store.row("SELECT worker FROM tasks WHERE seq = ? AND lease = ?", seq_of(lease), lease)
        if row is not None and row[0] != worker:
            raise ConflictError(f"lease {lease[:64]!r} belongs to another worker")

    def renew(self, lease: str, now: float | None = None) -> float:
        """Extend a lease; return the seconds it has. Raises `LeaseGoneError`, `UnknownLeaseError`."""
        with self._store.transaction():
            return self._leases.renew(lease, _or_clock(now))

    def release(self, lease: str) -> str:
        """Give a lease back unused; the task waits again and no attempt is counted. Return the task's state.

        Nothing changes when the lease has ended before. Raises `UnknownLeaseError`.
        """
        with self._store.transaction():
            return self._leases.end(lease, None, "")

    def fail(self, lease: str, failure: FailureClass, error: str) -> str:
        """Give a lease back because the environment or the infrastructure failed.

        The task waits for another attempt ("pending"), or fails for good after `max_attempts` ("failed").
        Nothing changes when the lease has ended before. Raises `UnknownLeaseError`; `InputError` for an
        agent's failure.
        """
        with self._store.transaction():
            return self._leases.end(lease, failure, error)

    def expire(self, now: float | None = None) -> int:
        """Return the tasks of leases that ran out, or let those fail that were lost too often; return how many."""
        if self._bodies.files is not None:
            self._bodies.files.expire_reserved()
        with self._store.transaction():
            return self._leases.expire(_or_clock(now))

    def restart_leases(self, now: float | None = None) -> None:
        """Give every lease its full time again, after a time in which no renewal could arrive."""
        with self._store.transaction():
            self._leases.restart(_or_clock(now))

    def reclaim(self, worker: str) -> int:
        """End the leases of a worker that has restarted, each as a lost attempt; return how many."""
        with self._store.transaction():
            return self._leases.reclaim(worker)

    def quarantine(self, worker: str, reason: str) -> int:
        """Refuse a worker further leases and plan its untaken groups again; return how many."""
        with self._store.transaction():
            return self._leases.quarantine(worker, reason)

    def readmit(self, worker: str) -> str:
        """Let a quarantined worker have leases again; return why it had none, "" when it was not quarantined."""
        with self._store.transaction():
            return self._leases.readmit(worker)

    def reject(
        self,
        step: int,
        leases: Sequence[str],
        reason: str,
        engines: Mapping[str, Sequence[str]] | None = None,
    ) -> list[str]:
        """Quarantine the workers that leased these groups of a taken batch; return their names.

        Their untrained groups, those in the batch too, are planned again, and the rest of the batch is ready to be
        taken again. Raises `ConflictError` when the step holds no such batch.

        engines: those that seem to be at fault, with the groups that show it. They are if groups of two workers do, or
        the whole batch is of one: a worker whose word alone counted could have the run give up one engine after
        another. The quarantine then lasts until `readmit_users`.
        """
        with self._store.transaction():
            leased_by = self._steps.leased_by(step)
            needed = min(2, len(set(leased_by.values())))
            witnesses = [{leased_by.get(one) for one in shown} - {None} for shown in (engines or {}).values()]
            workers = self._steps.give_back(step, leases)
            for worker in workers:
                self._leases.quarantine(worker, reason)
            if all(len(found) >= needed for found in witnesses):
                for engine in engines or ():
                    self._leases.blame(engine, reason)
            return workers

    def fail_taken(self, step: int, leases: Sequence[str], reason: str) -> int:
        """Count these groups of a taken batch as attempts lost to the infrastructure; return how many are planned
        again. The rest of the batch is ready to be taken again.

        Raises `ConflictError` when the step holds no such batch.
        """
        with self._store.transaction():
            self._steps.give_back(step, leases)
            return sum(self._leases.lose_ready(lease, reason) for lease in leases)

    def readmit_users(self, engine: str) -> list[str]:
        """Readmit the workers that were quarantined for the fault of an engine that none of them can reach any more;
        return their names."""
        with self._store.transaction():
            return self._leases.readmit_users(engine)

    def reserve(self, worker: str, count: int) -> list[int]:
        """Return files that a worker on this machine may write large bodies to, at most `count`, perhaps none."""
        return [] if self._bodies.files is None else self._bodies.files.reserve(worker, count)

    def claim(self, worker: str, file: int, size: int) -> bytes | None:
        """Return the body that a worker has written to a file that it had reserved; None when there is none.

        The file is for `stage`, or to be freed by `free`. For any thread.
        """
        return self._bodies.claim(worker, file, size)

    def free(self, file: int) -> None:
        """Free a file that was claimed and not staged."""
        if self._bodies.files is not None:
            self._bodies.files.free([file])

    def stage(self, group: Group, body: bytes, claimed: int | None = None) -> FileBody | None:
        """Write a large body to its file ahead of `put`, if `put` may accept it. For any thread.

        Until `put` has taken it, it is the caller's to `discard`. claimed: the file that holds it already; it is freed
        if `put` will not accept the group. Raises `OutageError`, `UnavailableError`.
        """
        s, size = self.settings, len({t.rollout for t in group.trajectories})
        accepted = (
            admit(group, size, s.no_signal, s.max_tokens, self._hooks.may_keep(group)).outcome == "ready"
        )
        if accepted:
            return self._bodies.stage(body, claimed)
        if claimed is not None:
            self.free(claimed)
        return None

    def discard(self, staged: FileBody) -> None:
        """Free the file of a body that `put` has not taken, because it refused the group or knew it already."""
        self._bodies.discard(staged)

    def put(self, group: Group, body: bytes | None = None, staged: FileBody | None = None) -> PutResult:
        """Accept a finished group, or drop it and free its slot in the same transaction.

        body: the group as it was encoded, of no use where it is staged. staged: where `stage` has written it.

        A repeated put of a lease changes nothing and tells what became of the first. Raises `LeaseGoneError`,
        `UnknownLeaseError`; `InputError` when the group is not what was leased; `StaleError` when a sampled
        token is older than the admission.
        """
        with self._store.transaction():
            return self._puts.put(group, body, staged)

    def take(self, step: int, now: float | None = None) -> Taken:
        """Take the batch of the step that starts at version `step`; the same one when asked again.

        With the batch of the committed version taken, the next step's may be taken ahead, before the commit between
        them. Raises `ConflictError` for any other step, `StaleError` rather than returning a group past its deadline.
        Groups that claim tokens of later versions, which cannot exist yet, are planned again and their worker is
        quarantined.
        """
        while True:
            taken = self.take_unread(step, now)
            if taken.groups is None:
                return taken
            found = self.read(taken.groups)
            whole = [body for body in found if body is not None]
            if len(whole) == len(found):
                return Taken(whole)
            self.lose(taken.groups, found)

    def take_unread(self, step: int, now: float | None = None) -> Taken:
        """`take`, with large bodies left where they are, for `read`."""
        with self._store.transaction():
            self._refuse_forged(step)
            return self._steps.take(step, _or_clock(now))

    def read(self, groups: Sequence[Stored]) -> list[bytes | None]:
        """Return the bytes of groups; None for one whose file has lost them. For any thread."""
        return [self._bodies.read(one) for one in groups]

    def shared(self) -> tuple[str, str]:
        """Where a process on this machine finds large bodies, and what proves that it is the same folder there; ""
        without files."""
        return self._bodies.shared()

    def lose(self, groups: Sequence[Stored], found: Sequence[bytes | None]) -> int:
        """Plan the tasks again of groups that `read` did not find; the rest of their batch is ready again."""
        lost = [g for g, body in zip(groups, found, strict=True) if body is None and isinstance(g, FileBody)]
        with self._store.transaction():
            return self._steps.lose(lost)

    def answers(self, step: int) -> bool:
        """True when `take` would answer now, with a batch, [] or an error; cheap, whatever number is admitted."""
        return self._steps.answers(step)

    def peek(self, step: int, seen: Sequence[str]) -> Peeked:
        """Return groups of the step's batch that are ready and not among the leases in `seen`; take and read nothing.

        Raises `ConflictError` when `step` is not the committed version.
        """
        with self._store.transaction():
            self._refuse_forged(step)
            return self._steps.peek(step, seen)

    def drop(self, step: int, leases: Sequence[str], reason: str) -> int:
        """Set groups of a taken batch aside as dropped, before its commit; return how many."""
        with self._store.transaction():
            return self._steps.drop(step, leases, reason)

    def commit(self, version: int) -> bool:
        """Account for the step that made `version`: its groups are trained, their slots free.

        Idempotent; True when this call moved the version. Raises `ConflictError` when a version would be
        skipped or no batch was taken.
        """
        with self._store.transaction():
            return self._steps.commit(version)

    def replan(self, version: int) -> int:
        """Plan all that is in flight at `version` again, as its policy has been given up; return how many groups.

        Raises `ConflictError` when the ledger is at another version.
        """
        with self._store.transaction():
            if version != self.version:
                raise ConflictError(f"cannot replan at version {version}: the ledger is at {self.version}")
            return self._steps.replan()

    def rollback_to(self, version: int) -> int:
        """Forget everything after `version` was committed; return how many tasks are pending again.

        Tasks trained in later steps are planned again. So are leased ones, and groups with tokens of later
        versions: those versions no longer exist. The batch taken at `version` itself stays taken when no
        later version was committed, and one taken ahead is ready again. Raises `ConflictError` for a version not yet
        committed.
        """
        with self._store.transaction():
            return self._steps.rollback_to(version)

    def stats(self) -> dict[str, Any]:
        """Return the run's counts; see `counts.count`."""
        return count(self._store, self.settings) | self._hooks.stats()

    def _refuse_forged(self, step: int) -> None:
        """Before `step` is taken, quarantine workers whose groups claim tokens of versions after it."""
        if self._store.fact("taken_step") >= step:
            return
        forged = "SELECT DISTINCT worker FROM tasks WHERE state = 'ready' AND newest > ?"
        for (worker,) in self._store.rows(forged, step):
            self._leases.quarantine(
                worker, f"its tokens claim versions after {step}, which did not exist yet"
            )

    def _known(self, task_id: str) -> bool:
        return self._store.row("SELECT 1 FROM tasks WHERE id = ?", task_id) is not None

    def _adopt_limits(self) -> None:
        limits = {name: getattr(self.settings, name) for name in ("groups_per_step", "max_staleness")}
        before = dict(
            self._store.rows(
                "SELECT name, value FROM facts WHERE name IN ('groups_per_step', 'max_staleness')"
            )
        )
        if before and before != limits:
            self._steps.replan()
        for name, value in limits.items():
            self._store.set_fact(name, value)
        if before != limits:
            self._store.set_fact("staleness_limit", self.settings.max_staleness)
        self._hooks.on_open(before != limits)


def body_folder(ledger: str | Path) -> Path:
    """Return the folder with the large bodies of a ledger."""
    return Path(ledger).with_suffix(".bodies")


def _or_clock(now: float | None) -> float:
    return now_s() if now is None else now
