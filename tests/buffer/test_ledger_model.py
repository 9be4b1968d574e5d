"""A model of the ledger against the real one: any order of calls, repeats, lost leases and crashes.

The model knows, for each task, where the ledger must have it. The machine crashes the ledger before and after any
SQLite commit, by going on from a copy of its files as they were on disk at that point: after the body of a group was
written and before the row that names it, for one.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncrl.buffer import bodies
from asyncrl.buffer.ledger import Ledger, LedgerSettings, body_folder
from asyncrl.buffer.schema import COUNTED
from asyncrl.data.codec import decode_group
from asyncrl.errors import ConflictError, StaleError
from asyncrl.extensions.replica import replica
from asyncrl.extensions.replica.replica import FolderPlace, Replica, restore
from asyncrl.types import FailureClass
from tests.buffer.factories import group, tasks

LARGE_BYTES = 4096
MEMORY = Path("/dev/shm")
"""The ledger syncs at every step, and what is tested here does not need a disk."""
LEASE_S = 10.0
MAX_ATTEMPTS = 3


pytestmark = pytest.mark.slow


class Crash(Exception):
    """The process died at a commit point."""


class Undone(Exception):
    """Takes a transaction back."""


class LedgerMachine(RuleBasedStateMachine):
    @initialize(
        staleness=st.integers(0, 3),
        per_step=st.integers(1, 3),
        beyond=st.sampled_from([None, None, 0, 1, 2, 20]),
        recycle=st.booleans(),
        token_budget=st.sampled_from([0, 0, 1, 10, 1000]),
        replicated=st.booleans(),
    )
    def open(self, staleness, per_step, beyond, recycle, token_budget, replicated):
        self.root = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        # About half of the groups are larger.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(bodies, "LARGE_BYTES", LARGE_BYTES)
        self.generation = 0
        self.settings = LedgerSettings(
            per_step, staleness, 2, LEASE_S, max_attempts=MAX_ATTEMPTS,
            over_provision=beyond, recycle=recycle, token_budget=token_budget,
        )  # fmt: skip
        self.now = 0.0
        self.path = self.root / "ledger-0.sqlite"
        self.replica = self.root / "second" if replicated else None
        self.patch.setattr(replica, "LONGEST_LOG_BYTES", 300_000)
        self.book = Ledger(self.path, self.settings, now=0.0, follower=self._place())
        self.version = 0
        self.planned = 0
        self.state = {}
        self.leases = {}
        self.attempts = {}
        self.expiry = {}
        self.newest = {}
        self.trained = []
        self.batch = None
        self.ahead = None
        self.old_leases = []

    def teardown(self):
        if hasattr(self, "book"):
            self.book.close()
            shutil.rmtree(self.root)
            self.patch.undo()

    # -- crashing ------------------------------------------------------------------------------------------

    def _place(self):
        return None if self.replica is None else Replica(FolderPlace(self.replica))

    def call(self, act, crash):
        """Run `act(ledger)`; `crash` is None, "before" or "after" a commit. The caller repeats a crashed call.

        "node" is a crash between the commit and its arrival at the replica, which the ledger is restored from.
        """
        if crash is None or (crash == "node" and self.replica is None):
            return act(self.book)
        target = self.root / f"ledger-{self.generation + 1}.sqlite"
        execute = self.book._store.execute

        def spy(statement, values=()):
            if statement == "COMMIT":
                if crash != "before":
                    execute(statement, values)
                self._copy(target)
                raise Crash
            return execute(statement, values)

        store = self.book._store
        type(store).execute, original = staticmethod(spy), type(store).execute
        try:
            act(self.book)
        except Crash:
            pass
        except (ConflictError, StaleError):
            # The call was refused before it came to a commit.
            self._copy(target)
        finally:
            type(store).execute = original
        self.book.close()
        self.generation += 1
        self.path = target
        if crash == "node":
            target.unlink(missing_ok=True)
            Path(f"{target}-wal").unlink(missing_ok=True)
            assert restore(self.replica, target)["lost"] == 0
        self.book = Ledger(self.path, self.settings, now=self.now, follower=self._place())
        files = {int(path.stem) for path in body_folder(self.path).iterdir()}
        named = {n for (n,) in self.book._store.rows("SELECT file FROM bodies WHERE file IS NOT NULL")}
        assert files == named, "what was written without a row is swept"
        for lease_id in self.expiry:
            self.expiry[lease_id] = self.now + LEASE_S
        return act(self.book)

    def _copy(self, target):
        for suffix in ("", "-wal"):
            source = Path(str(self.path) + suffix)
            if source.exists():
                shutil.copyfile(source, str(target) + suffix)
        shutil.copytree(body_folder(self.path), body_folder(target))

    crashes = st.sampled_from([None, None, None, None, "before", "after", "node"])

    # -- calls ---------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 4), crash=crashes)
    def add_tasks(self, count, crash):
        new = tasks(self.planned + count)
        self.call(lambda book: book.add_tasks(new), crash)
        for task in new[self.planned :]:
            self.state[task.id] = "pending"
            self.attempts[task.id] = 0
        self.planned += count

    @rule(crash=crashes, call=st.integers(0, 2**30))
    def lease(self, crash, call):
        num_open = sum(s in ("leased", "ready") for s in self.state.values())
        num_taken = sum(s == "taken" for s in self.state.values())
        batches = (self.batch is not None) + (self.ahead is not None)
        most, beyond = (
            self.settings.max_staleness * self.settings.groups_per_step,
            self.settings.over_provision,
        )
        slots = self.settings.groups_per_step + (most if beyond is None else min(most, beyond))
        # A step that has its batch trains nothing that is admitted now.
        in_time = (self.settings.max_staleness + 1 - batches) * self.settings.groups_per_step
        room = num_open < min(slots - num_taken, in_time)
        pending = [t for t in sorted(self.state, key=lambda t: int(t[1:])) if self.state[t] == "pending"]
        name = f"{call}-{len(self.old_leases)}"
        found = self.call(lambda book: book.lease("w", self.now, name), crash)
        if not (room and pending):
            assert found is None
            return
        assert (found.task.id, found.version) == (pending[0], self.version)
        assert found.attempt == self.attempts[found.task.id] + 1
        self.state[found.task.id] = "leased"
        self.leases[found.task.id] = found
        self.expiry[found.id] = self.now + LEASE_S
        self.old_leases.append(found)

    def pick(self, data, state):
        names = sorted(t for t, s in self.state.items() if s == state)
        return data.draw(st.sampled_from(names)) if names else None

    @precondition(lambda self: self.old_leases)
    @rule(
        data=st.data(),
        crash=crashes,
        kind=st.sampled_from(["ready", "ready", "ready", "dropped"]),
        length=st.sampled_from([0, LARGE_BYTES // 26]),
    )
    def put(self, data, crash, kind, length):
        """Any lease ever given: live, repeated, expired, trained."""
        one = data.draw(st.sampled_from(self.old_leases))
        name = one.task.id
        newest = data.draw(
            st.integers(one.version, max(one.version, self.version + (self.batch is not None)))
        )
        rewards = (0.0, 1.0 if kind == "ready" else 0.0)
        finished = group(one, versions=(one.version, newest), rewards=rewards, length=length)
        live = self.leases.get(name) is one
        state = self.state[name]
        try:
            result = self.call(lambda book: book.put(finished), crash)
        except ConflictError:
            assert not live or state in ("pending",)
            return
        assert live
        if state == "leased":
            assert result.outcome == kind
            self.state[name] = kind
            self.newest[name] = newest
            self.expiry.pop(one.id)
        else:
            assert result.duplicate

    @rule(data=st.data(), crash=crashes)
    def fail(self, data, crash):
        name = self.pick(data, "leased")
        if name is None:
            return
        one = self.leases[name]
        self.call(lambda book: book.fail(one.id, FailureClass.ENVIRONMENT, "broke"), crash)
        self.lose(name)

    @rule(data=st.data(), crash=crashes)
    def release(self, data, crash):
        name = self.pick(data, "leased")
        if name is not None:
            self.call(lambda book: book.release(self.leases[name].id), crash)
            self.state[name] = "pending"
            self.expiry.pop(self.leases[name].id)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]), crash=crashes)
    def time_passes(self, seconds, crash):
        self.now += seconds
        due = [name for name, state in self.state.items() if state == "leased"]
        due = [name for name in due if self.expiry[self.leases[name].id] < self.now]
        self.call(lambda book: book.expire(self.now), crash)
        # A restart gives every lease its time again, unless it had ended before.
        undone = crash == "before" or (crash == "node" and self.replica is not None)
        for name in () if undone else due:
            self.lose(name)

    def lose(self, name):
        self.expiry.pop(self.leases[name].id)
        self.attempts[name] += 1
        self.state[name] = "pending" if self.attempts[name] < MAX_ATTEMPTS else "failed"

    @rule(crash=crashes)
    def take(self, crash):
        self.batch = self.taken(self.version, self.batch, crash)

    @precondition(lambda self: self.batch is not None)
    @rule(crash=crashes)
    def take_ahead(self, crash):
        """While the version between the two steps is on its way to the engines."""
        self.ahead = self.taken(self.version + 1, self.ahead, crash)

    def taken(self, step, before, crash):
        """Take the batch of a step; return its tasks. before: those that it had taken."""
        taken = self.call(lambda book: book.take(step), crash)
        if taken.groups is None:
            assert before is None
            return None
        batch = [decode_group(body) for body in taken.groups]
        names = [g.task.id for g in batch]
        if before is not None:
            assert names == before, "a step keeps its batch"
            return before
        if len(names) != self.settings.groups_per_step:
            sampled = [sum(t.num_sampled for t in one.trajectories) for one in batch]
            assert 0 < len(names) < self.settings.groups_per_step
            assert sum(sampled) >= self.settings.token_budget > 0
        for one in batch:
            assert self.state[one.task.id] == "ready"
            assert one.id == self.leases[one.task.id].id
            assert min(t.min_version for t in one.trajectories) >= step - self.settings.max_staleness
            self.state[one.task.id] = "taken"
        return names

    @precondition(lambda self: self.batch is not None)
    @rule(crash=crashes)
    def commit(self, crash):
        self.call(lambda book: book.commit(self.version + 1), crash)
        for name in self.batch:
            if self.state[name] == "taken":
                self.state[name] = "trained"
                self.trained.append((self.version, name))
        self.version += 1
        self.batch, self.ahead = self.ahead, None
        for name in [name for name, state in self.state.items() if state == "leased"]:
            if not self.settings.recycle:
                self.state[name] = "pending"
                self.expiry.pop(self.leases[name].id)

    @rule(crash=crashes)
    def replan(self, crash):
        self.call(lambda book: book.replan(self.version), crash)
        for name, state in self.state.items():
            if state == "leased":
                self.expiry.pop(self.leases[name].id)
            if state in ("leased", "ready", "taken"):
                self.state[name] = "pending"
        self.batch = self.ahead = None

    @precondition(lambda self: self.version > 0)
    @rule(data=st.data(), crash=crashes)
    def rollback(self, data, crash):
        to = data.draw(st.integers(0, self.version))
        self.call(lambda book: book.rollback_to(to), crash)
        gone = {name for step, name in self.trained if step >= to}
        self.trained = [(step, name) for step, name in self.trained if step < to]
        stays_taken = self.batch if to == self.version and self.batch is not None else []
        counts = self.book.stats()
        for name, state in self.state.items():
            if state == "leased":
                self.state[name] = "pending"
                self.expiry.pop(self.leases[name].id)
            elif name in gone:
                self.state[name] = "pending"
            elif state in ("ready", "taken") and not (state == "taken" and name in stays_taken):
                # Tokens and admissions of a version that is gone cannot be trained on.
                lost = self.newest[name] > to or self.leases[name].version > to
                self.state[name] = "pending" if lost else "ready"
        assert counts["taken"] == (len([s for s in self.state.values() if s == "taken"]))
        if to != self.version:
            self.batch = None
        self.ahead = None
        self.version = to

    # -- what always holds ---------------------------------------------------------------------------------

    @invariant()
    def counts_are_the_models(self):
        if not hasattr(self, "book"):
            return
        stats = self.book.stats()
        for state in ("pending", "ready", "taken", "trained", "dropped", "failed"):
            assert stats[state] == sum(s == state for s in self.state.values()), state
        assert stats["in_flight"] == sum(s == "leased" for s in self.state.values())
        assert stats["version"] == self.version
        assert stats["fill"] <= 1.0

    @invariant()
    def counts_are_what_a_recount_finds(self):
        if not hasattr(self, "book"):
            return
        kept = self.book._store.rows("SELECT * FROM counts WHERE tasks > 0 ORDER BY 1, 2, 3")
        counted = self.book._store.rows(f"{COUNTED} ORDER BY 1, 2, 3")
        assert [tuple(row) for row in kept] == [tuple(row) for row in counted]

    @invariant()
    def take_answers_exactly_when_it_is_said_to(self):
        if not hasattr(self, "book"):
            return
        for step in (self.version, *([self.version + 1] if self.batch is not None else [])):
            said = self.book.answers(step)
            with contextlib.suppress(Undone), self.book.batch():
                assert said == (self.book.take(step).groups is not None)
                raise Undone

    @invariant()
    def no_task_is_trained_twice(self):
        if hasattr(self, "book"):
            names = [name for _, name in self.trained]
            assert len(names) == len(set(names))

    @invariant()
    def bodies_are_kept_exactly_as_long_as_needed(self):
        if hasattr(self, "book"):
            kept = self.book._store.row("SELECT COUNT(*) FROM bodies")[0]
            assert kept == sum(s in ("ready", "taken") for s in self.state.values())


LedgerMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
)
TestLedgerModel = LedgerMachine.TestCase
