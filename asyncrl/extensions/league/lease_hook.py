"""The population of opponents in the ledger: who was dealt to which task, how the games ended, and the win rates.

    grant of a lease at version v -> an opponent, by the win rates of version v and the task's number
    put of a group -> its games, under the version at the put
    commit of version v + 1 -> the games of v enter the win rates, in the order of their tasks

As with a curriculum (`asyncrl.extensions.curriculum.lease_hook`) each is part of the transaction that it follows from.
Games are kept, so that a rollback can build the win rates of any earlier version again. Without a population there is
no such hook and none of these tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from asyncrl.buffer.hooks.configured import LeaseContext
from asyncrl.buffer.lease_hooks import HookFactory, LeaseHook, Terms
from asyncrl.buffer.ledger import Ledger
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store
from asyncrl.errors import InputError
from asyncrl.extensions.league.members import population
from asyncrl.extensions.league.opponent import Opponent, opponent_extra
from asyncrl.extensions.league.rules.opponents import Population, Record, score
from asyncrl.types import Group, Status, Trajectory

TABLES = (
    "CREATE TABLE IF NOT EXISTS dealt ("
    "seq INTEGER PRIMARY KEY, member INTEGER NOT NULL, main INTEGER NOT NULL, policy TEXT NOT NULL, against INTEGER)",
    # Numbers are past versions, texts games of an exploiter (`Opponent.key`): the column has no type.
    "CREATE TABLE IF NOT EXISTS games (version INTEGER, seq INTEGER, member NOT NULL, points REAL NOT NULL, "
    "played INTEGER NOT NULL, PRIMARY KEY (version, seq)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS win_rates (member PRIMARY KEY, points REAL NOT NULL, games REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS joined (version INTEGER PRIMARY KEY)",
)
NO_EXPLOITER = "this run has no exploiter, whose versions could join a population"
PLAYED_AGAIN = "seq IN (SELECT seq FROM tasks WHERE state IN ('pending', 'leased', 'failed'))"
"""Tasks whose earlier games, if they have any, no longer stand."""


class Opponents(LeaseHook):
    """See the module. Every method but the constructor runs inside a transaction of its caller."""

    def __init__(self, store: Store, settings: LedgerSettings, population: Population) -> None:
        self.store = store
        self.population = population
        for table in TABLES:
            store.execute(table)

    def on_grant(self, seq: int, version: int) -> None:
        """Decide who plays the other side of a task that is admitted at `version`."""
        rates = {member: record.win_rate for member, record in self._records().items()}
        opponent = self.population.deal(seq, version, rates, self._joined())
        self.store.execute("DELETE FROM dealt WHERE seq = ?", (seq,))
        if opponent is not None:
            self.store.execute(
                "INSERT INTO dealt VALUES (?, ?, ?, ?, ?)",
                (seq, opponent.version, opponent.main, opponent.policy, opponent.against),
            )

    def join(self, versions: Sequence[int]) -> None:
        """Have copies of these versions of the exploiter, and no others, be members; a further one is a new start.

        Its games against the policy and its past versions are then counted from the beginning. Raises `InputError`
        without an exploiter.
        """
        if not self.population.exploiter:
            raise InputError(NO_EXPLOITER)
        known = self._joined()
        if list(versions) == known:
            return
        self.store.execute("DELETE FROM joined")
        self.store.executemany("INSERT INTO joined VALUES (?)", [(version,) for version in versions])
        if not set(versions) <= set(known):
            name = self.population.exploiter
            for table in ("win_rates", "games"):
                self.store.execute(
                    f"DELETE FROM {table} WHERE member = ? OR substr(member, 1, ?) = ?",
                    (name, len(name) + 1, f"{name}:"),
                )

    def dealt(self, seq: int) -> Opponent | None:
        """Return who plays the other side of a task, None for the policy itself."""
        row = self.store.row("SELECT member, main, policy, against FROM dealt WHERE seq = ?", seq)
        return None if row is None else Opponent(row[0], bool(row[1]), row[2], row[3])

    def terms(self, seq: int, terms: Terms) -> Terms:
        """Return the terms with the task's opponent, if it has one."""
        return replace(terms, extras={**terms.extras, **opponent_extra(self.dealt(seq))})

    def on_put(self, seq: int, group: Group) -> None:
        """Keep the games of a group that is put for good, whether it is trained or dropped."""
        opponent = self.dealt(seq)
        if opponent is None:
            return
        firsts: dict[int, Trajectory] = {}
        # Of a game of the exploiter against a past version the rewards are all that is left here.
        games = group.usable if opponent.against is None else group.trajectories
        for trajectory in games:
            if trajectory.status is Status.FAILED:
                continue
            firsts.setdefault(trajectory.rollout, trajectory)
        points = score([t.reward for t in firsts.values()])
        self.store.execute(
            "INSERT OR REPLACE INTO games VALUES (?, ?, ?, ?, ?)",
            (self.store.fact("version"), seq, opponent.key, points, len(firsts)),
        )

    def on_commit(self, version: int) -> None:
        """Let the games of `version`, which has just been followed by the next one, enter the win rates."""
        self.store.execute(f"DELETE FROM games WHERE version = ? AND {PLAYED_AGAIN}", (version,))
        self._save(self._folded(self._records(), version, version))

    def on_rollback(self, version: int) -> None:
        """Return to the win rates of `version`; forget the later games of tasks that are to be played again."""
        self.store.execute(f"DELETE FROM games WHERE version >= ? AND {PLAYED_AGAIN}", (version,))
        self._save(self._folded({}, 0, version - 1))

    def stats(self) -> dict[str, float]:
        """Return the number of members, and the mean and lowest win rate against them, and with an exploiter how many
        of its copies have joined and its own win rate."""
        joined, name = self._joined(), self.population.exploiter
        members: list[int | str] = [*self.population.members(self.store.fact("version"))]
        members += [Opponent(version, True, name).key for version in joined[-self.population.size :]]
        numbers: dict[str, float] = {"members": len(members)}
        records = self._records()
        if name:
            own = 1.0 - records.get(name, Record()).win_rate
            numbers |= {"exploiters": len(joined), "exploiter_win_rate": own}
        if members:
            rates = [records.get(member, Record()).win_rate for member in members]
            numbers |= {"win_rate_mean": sum(rates) / len(rates), "win_rate_min": min(rates)}
        return {f"opponents_{name}": value for name, value in numbers.items()}

    def _joined(self) -> list[int]:
        return [version for (version,) in self.store.rows("SELECT version FROM joined ORDER BY version")]

    def _records(self) -> dict[int | str, Record]:
        found = self.store.rows("SELECT member, points, games FROM win_rates")
        return {member: Record(points, games) for member, points, games in found}

    def _folded(self, records: dict[int | str, Record], first: int, last: int) -> dict[int | str, Record]:
        """Return the records after the games of the versions from `first` to `last`."""
        games = self.store.rows(
            "SELECT member, points, played FROM games WHERE version BETWEEN ? AND ? ORDER BY version, seq",
            first, last,
        )  # fmt: skip
        for member, points, played in games:
            records[member] = records.get(member, Record()).after(points, played)
        return records

    def _save(self, records: dict[int | str, Record]) -> None:
        self.store.execute("DELETE FROM win_rates")
        self.store.executemany(
            "INSERT INTO win_rates VALUES (?, ?, ?)",
            [(member, record.points, record.games) for member, record in records.items()],
        )


def dealing(context: LeaseContext) -> HookFactory:
    """Return what makes the hook of a run with a population."""
    found = population(context.config)
    assert found is not None
    return partial(Opponents, population=found)


def join_opponents(ledger: Ledger, versions: Sequence[int]) -> None:
    """`Opponents.join` of a ledger. Raises `InputError` where it has no exploiter."""
    opponents = ledger.hook(Opponents)
    if opponents is None:
        raise InputError(NO_EXPLOITER)
    with ledger.batch():
        opponents.join(versions)
