"""The curriculum in the ledger: its pool, its proposals, the outcomes of these, and its state.

    pool --propose, when no task waits--> tasks, leased and played as any others
    put of a group -> an outcome, under the version at the put
    commit of version v + 1 -> the curriculum observes the outcomes of v; its state is that of version v + 1

Each is part of the transaction that it follows from. Outcomes are kept, so that a rollback can build the state of any
earlier version again. They are observed in the order of their proposals, whenever they arrived, and proposals are made
from the state of the committed version alone: what is proposed does not depend on the order in which groups finish.
Without a curriculum there is no such hook and none of these tables, and tasks are those that were added.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgpack

from asyncrl.buffer.hooks.configured import LeaseContext
from asyncrl.buffer.lease_hooks import HookFactory, LeaseHook, Terms
from asyncrl.buffer.ledger import Ledger
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store
from asyncrl.data.codec import decode_task, encode_task, pack, unpack
from asyncrl.errors import ConflictError
from asyncrl.extensions.curriculum.conflicts import check_curriculum
from asyncrl.extensions.curriculum.curriculum import Curriculum, Outcome, Proposal
from asyncrl.extensions.curriculum.examples import examples_extra
from asyncrl.extensions.curriculum.seeding import example_of
from asyncrl.extensions.replay.success_pool import lacks_success
from asyncrl.extensions.table import value_at
from asyncrl.types import Group, Task, Trajectory

TABLES = (
    "CREATE TABLE IF NOT EXISTS pool (place INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS proposals ("
    "seq INTEGER PRIMARY KEY, place INTEGER NOT NULL, rollouts INTEGER NOT NULL, predicted REAL)",
    "CREATE INDEX IF NOT EXISTS proposals_by_place ON proposals (place)",
    "CREATE TABLE IF NOT EXISTS turn_limits (seq INTEGER PRIMARY KEY, max_turns INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS examples (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS recorded_successes (place INTEGER PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS outcomes ("
    "version INTEGER, seq INTEGER, body BLOB NOT NULL, PRIMARY KEY (version, seq)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS curriculum (version INTEGER NOT NULL, first INTEGER NOT NULL, total INTEGER NOT NULL, "
    "proposed INTEGER NOT NULL, state BLOB NOT NULL)",
)
WAITING = "('pending', 'leased', 'failed')"
"""States of tasks whose earlier outcome, if they have one, no longer stands."""
BINS = 10


@dataclass(slots=True)
class Calibration:
    """How the predicted share of successes compares with the realised one, over all groups with a prediction."""

    bins: list[list[float]] = field(default_factory=lambda: [[0.0, 0.0, 0.0] for _ in range(BINS)])
    """For each tenth of predictions: groups, sum of predictions, sum of realised shares."""
    squared_error: float = 0.0

    def add(self, predicted: float, realised: float) -> None:
        """Count one group."""
        row = self.bins[min(int(predicted * BINS), BINS - 1)]
        for i, value in enumerate((1.0, predicted, realised)):
            row[i] += value
        self.squared_error += (predicted - realised) ** 2

    def summary(self) -> dict[str, float]:
        """Return Brier score and expected calibration error: the mean distance of a bin's two means."""
        groups = sum(row[0] for row in self.bins)
        if not groups:
            return {}
        distance = sum(abs(predicted - realised) for _, predicted, realised in self.bins)
        return {"brier": self.squared_error / groups, "calibration_error": distance / groups}


class Proposals(LeaseHook):
    """See the module. Every method but the constructor runs inside a transaction of its caller.

    make: makes the curriculum of a pool. complete_age: versions up to which the trainer completes groups without a
    success by an earlier one (`train.complete_groups`): such groups are kept though they have no signal; 0 where it
    does not.
    """

    def __init__(
        self,
        store: Store,
        settings: LedgerSettings,
        make: Callable[[Sequence[Task]], Curriculum],
        complete_age: int = 0,
    ) -> None:
        self.store = store
        self.settings = settings
        self.make = make
        self.complete_age = complete_age
        self._current: tuple[int, Curriculum, Calibration] | None = None
        """A state and its version. It holds while the ledger is at that version, which a failed transaction leaves."""
        for table in TABLES:
            store.execute(table)

    @property
    def has_pool(self) -> bool:
        """False while there is nothing to choose among."""
        return self.store.row("SELECT 1 FROM pool LIMIT 1") is not None

    def add_pool(self, tasks: Sequence[Task], total: int, solved: Sequence[int] = ()) -> int:
        """Give the curriculum its tasks, once, and propose the first; return how many were new.

        total: proposals of the whole run, 0 for no limit. solved: places of tasks with a success from before the run,
        which will complete groups without one. Raises `ConflictError` for another pool than before, and
        `InputError` for tasks that the curriculum cannot choose among.
        """
        bodies = [encode_task(task) for task in tasks]
        known = [body for (body,) in self.store.rows("SELECT body FROM pool ORDER BY place")]
        if known and known != bodies:
            raise ConflictError(
                f"the run's pool has {len(known)} tasks, and these {len(bodies)} are not the same; resume with the "
                "tasks it started with"
            )
        if known:
            return 0
        self.store.executemany("INSERT INTO pool VALUES (?, ?)", list(enumerate(bodies)))
        self.store.executemany("INSERT INTO recorded_successes VALUES (?)", [(place,) for place in solved])
        version = self.store.fact("version")
        state = _pack(self.make(tasks), Calibration())
        self.store.execute("INSERT INTO curriculum VALUES (?, ?, ?, 0, ?)", (version, version, total, state))
        self.plan()
        return len(bodies)

    def plan(self) -> bool:
        """Plan the next step's worth of tasks, and close the plan after the last; True when any was planned."""
        if not self.has_pool or self.store.fact("closed"):
            return False
        curriculum, _ = self._state()
        total, number = self.store.row("SELECT total, proposed FROM curriculum")
        count = self.settings.groups_per_step
        count = min(count, total - number) if total else count
        for offset, proposal in enumerate(curriculum.propose(count, number, self._busy())):
            self._plan(number + offset, proposal)
        self.store.execute("UPDATE curriculum SET proposed = ?", (number + count,))
        if total and number + count >= total:
            self.store.set_fact("closed", 1)
        return count > 0

    def _busy(self) -> set[int]:
        """Return the places of tasks of which the curriculum has yet to observe an outcome.

        Those with an outcome of this version count, too: which of them finished first must not matter.
        """
        waiting = self.store.rows(
            "SELECT place FROM tasks JOIN proposals USING (seq) WHERE state IN ('pending', 'leased') "
            "UNION SELECT place FROM outcomes JOIN proposals USING (seq) WHERE version >= ?",
            self.store.fact("version"),
        )
        return {place for (place,) in waiting}

    def _plan(self, number: int, proposal: Proposal) -> None:
        body = self.store.row("SELECT body FROM pool WHERE place = ?", proposal.place)[0]
        task = decode_task(body)
        # A task may be proposed again and again; in the ledger each proposal is a task of its own.
        again = Task(f"{number:08d}-{task.id}", task.env, task.seed, task.split, task.data)
        cursor = self.store.execute(
            "INSERT INTO tasks (id, body) VALUES (?, ?)", (again.id, encode_task(again))
        )
        self.store.execute(
            "INSERT INTO proposals VALUES (?, ?, ?, ?)",
            (cursor.lastrowid, proposal.place, proposal.rollouts, proposal.predicted),
        )
        if proposal.max_turns:
            self.store.execute(
                "INSERT INTO turn_limits VALUES (?, ?)", (cursor.lastrowid, proposal.max_turns)
            )
        if proposal.examples:
            shown = pack(list(proposal.examples))
            self.store.execute("INSERT INTO examples VALUES (?, ?)", (cursor.lastrowid, shown))

    def terms(self, seq: int, terms: Terms) -> Terms:
        """Return the terms of a proposal: the size of its group, its most turns and the examples of its prompt."""
        size = self.store.row("SELECT rollouts FROM proposals WHERE seq = ?", seq)
        turns = self.store.row("SELECT max_turns FROM turn_limits WHERE seq = ?", seq)
        shown = self.store.row("SELECT body FROM examples WHERE seq = ?", seq)
        return replace(
            terms,
            group_size=terms.group_size if size is None else size[0],
            max_turns=terms.max_turns if turns is None else turns[0],
            extras={**terms.extras, **examples_extra([] if shown is None else unpack(shown[0]))},
        )

    def may_keep(self, group: Group) -> bool:
        """True for a group without a success, where an earlier one may complete it."""
        return self.complete_age > 0 and lacks_success(group)

    def keeps(self, seq: int, deadline: int, group: Group) -> bool:
        """True for a group without a success that an earlier one of the same task will complete."""
        return self.may_keep(group) and (
            self._solved_before(seq) or self._solved_since(seq, deadline - self.complete_age)
        )

    def on_put(self, seq: int, group: Group) -> None:
        """Keep the outcome of a proposal that is put for good, whether it is trained or dropped."""
        if self.store.row("SELECT 1 FROM proposals WHERE seq = ?", seq) is None:
            return
        firsts: dict[int, Trajectory] = {}
        turns: dict[int, int] = {}
        for trajectory in group.usable:
            firsts.setdefault(trajectory.rollout, trajectory)
            turns[trajectory.rollout] = turns.get(trajectory.rollout, 0) + len(trajectory.turns)
        rewards = [float(t.reward) for t in firsts.values()]
        verdicts = [
            min(max(t.reward, 0.0), 1.0) if t.success is None else float(t.success) for t in firsts.values()
        ]
        tokens = sum(t.num_sampled for t in group.trajectories)
        example = example_of(group.trajectories) if self._state()[0].keeps_examples else ""
        self.store.execute(
            "INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?)",
            (
                self.store.fact("version"),
                seq,
                pack([rewards, verdicts, group.version, tokens, [turns[one] for one in firsts], example]),
            ),
        )

    def _solved_before(self, seq: int) -> bool:
        """True when a success at the same task was recorded before the run."""
        found = self.store.row(
            "SELECT 1 FROM proposals JOIN recorded_successes USING (place) WHERE seq = ?", seq
        )
        return found is not None

    def _solved_since(self, seq: int, oldest: int) -> bool:
        """True when a trained group of the same task had a success and no token from before version `oldest`.

        Groups of the step that is being filled are not trained yet: which of them finished first does not matter.
        """
        found = self.store.rows(
            "SELECT outcomes.body FROM proposals AS mine JOIN proposals AS other USING (place) "
            "JOIN tasks ON tasks.seq = other.seq JOIN outcomes ON outcomes.seq = other.seq "
            "AND outcomes.version BETWEEN tasks.version AND tasks.step "
            "WHERE mine.seq = ? AND tasks.state = 'trained' AND tasks.oldest >= ?",
            seq, oldest,
        )  # fmt: skip
        return any(max(unpack(body)[1], default=0.0) > 0 for (body,) in found)

    def on_commit(self, version: int) -> None:
        """Let the curriculum observe the outcomes of `version`, which has just been followed by the next one."""
        if not self.has_pool:
            return
        self.store.execute(
            f"DELETE FROM outcomes WHERE version = ? AND seq IN (SELECT seq FROM tasks WHERE state IN {WAITING})",
            (version,),
        )
        curriculum, calibration = self._state()
        self._current = None
        self._fold(curriculum, calibration, version)
        self._save(curriculum, calibration, version + 1)
        self._current = version + 1, curriculum, calibration

    def on_rollback(self, version: int) -> None:
        """Return to the state of `version`; forget the later outcomes of tasks that are to be played again."""
        if not self.has_pool:
            return
        self.store.execute(
            f"DELETE FROM outcomes WHERE version >= ? AND seq IN (SELECT seq FROM tasks WHERE state IN {WAITING})",
            (version,),
        )
        first, newest = self.store.row("SELECT first, version FROM curriculum")
        if newest == version:
            return
        curriculum, calibration = self.make(self._tasks()), Calibration()
        self._current = None
        for earlier in range(first, version):
            self._fold(curriculum, calibration, earlier)
        self._save(curriculum, calibration, version)

    def stats(self) -> dict[str, float]:
        """Return the number of proposals, and how well their success was predicted; {} without a pool."""
        if not self.has_pool:
            return {}
        _, calibration = self._state()
        proposals = self.store.row("SELECT proposed FROM curriculum")[0]
        numbers = {"proposals": proposals} | calibration.summary()
        return {f"curriculum_{name}": value for name, value in numbers.items()}

    def _state(self) -> tuple[Curriculum, Calibration]:
        version = self.store.row("SELECT version FROM curriculum")[0]
        if self._current is None or self._current[0] != version:
            state = self.store.row("SELECT state FROM curriculum")[0]
            curriculum, found = self.make(self._tasks()), msgpack.unpackb(state)
            curriculum.load_state(found["state"])
            self._current = version, curriculum, Calibration(found["bins"], found["squared_error"])
        return self._current[1:]

    def _tasks(self) -> list[Task]:
        return [decode_task(body) for (body,) in self.store.rows("SELECT body FROM pool ORDER BY place")]

    def _fold(self, curriculum: Curriculum, calibration: Calibration, version: int) -> None:
        """Observe one version's outcomes."""
        outcomes = []
        for place, predicted, body in self.store.rows(
            "SELECT place, predicted, body FROM outcomes JOIN proposals USING (seq) WHERE version = ? ORDER BY seq",
            version,
        ):
            rewards, verdicts, admitted, tokens, *later = unpack(body)
            # Earlier ledgers have outcomes without them.
            turns = tuple(later[0]) if later else ()
            example = str(later[1]) if later[1:] else ""
            outcome = Outcome(place, tuple(rewards), tuple(verdicts), admitted, tokens, turns, example)
            outcomes.append(outcome)
            if predicted is not None and outcome.successes:
                calibration.add(predicted, outcome.success)
        curriculum.observe(outcomes)

    def _save(self, curriculum: Curriculum, calibration: Calibration, version: int) -> None:
        self.store.execute(
            "UPDATE curriculum SET version = ?, state = ?", (version, _pack(curriculum, calibration))
        )


def proposing(context: LeaseContext) -> HookFactory:
    """Return what makes the hook of a run with a curriculum."""
    config = context.config
    make = check_curriculum(config)
    assert make is not None
    complete_age = (
        value_at(config, "train.replay_max_age") if value_at(config, "train.complete_groups") else 0
    )
    return partial(Proposals, make=make, complete_age=complete_age)


def add_pool(ledger: Ledger, tasks: Sequence[Task], total: int = 0, solved: Sequence[int] = ()) -> int:
    """`Proposals.add_pool` of a ledger. Raises `ConflictError` where it has no curriculum."""
    proposals = ledger.hook(Proposals)
    if proposals is None:
        raise ConflictError("the run has no curriculum to choose among a pool; add its tasks themselves")
    with ledger.batch():
        return proposals.add_pool(tasks, total, solved)


def predictions(ledger: Path) -> list[tuple[float, float]]:
    """Return the predicted and the realised share of successes of each proposal with an outcome, in the order of
    versions; none where the run had no curriculum. For a ledger that no buffer writes any more."""
    with closing(sqlite3.connect(f"{ledger.resolve().as_uri()}?mode=ro", uri=True)) as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'proposals'").fetchone() is None:
            return []
        rows = database.execute(
            "SELECT predicted, body FROM outcomes JOIN proposals USING (seq) WHERE predicted IS NOT NULL "
            "ORDER BY version, seq"
        ).fetchall()
    verdicts = [(predicted, unpack(body)[1]) for predicted, body in rows]
    return [(predicted, sum(found) / len(found)) for predicted, found in verdicts if found]


def _pack(curriculum: Curriculum, calibration: Calibration) -> bytes:
    return pack(
        {
            "state": curriculum.state(),
            "bins": calibration.bins,
            "squared_error": calibration.squared_error,
        }
    )
