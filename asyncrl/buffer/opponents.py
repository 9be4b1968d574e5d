"""The population of opponents in the ledger: who was dealt to which task, how the games ended, and the win rates.

    grant of a lease at version v -> an opponent, by the win rates of version v and the task's number
    put of a group -> its games, under the version at the put
    commit of version v + 1 -> the games of v enter the win rates, in the order of their tasks

As with a curriculum (`proposals`) each is part of the transaction that it follows from. Games are kept, so that a
rollback can build the win rates of any earlier version again. Without a population there are none of these tables.
"""

from __future__ import annotations

from asyncrl.algo.curation.opponents import Population, Record, score
from asyncrl.buffer.store import Store
from asyncrl.types import Group, Opponent, Trajectory

TABLES = (
    "CREATE TABLE IF NOT EXISTS opponents ("
    "seq INTEGER PRIMARY KEY, member INTEGER NOT NULL, main INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS games (version INTEGER, seq INTEGER, member INTEGER NOT NULL, points REAL NOT NULL, "
    "played INTEGER NOT NULL, PRIMARY KEY (version, seq)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS win_rates (member INTEGER PRIMARY KEY, points REAL NOT NULL, games REAL NOT NULL)",
)
PLAYED_AGAIN = "seq IN (SELECT seq FROM tasks WHERE state IN ('pending', 'leased', 'failed'))"
"""Tasks whose earlier games, if they have any, no longer stand."""


class Opponents:
    """See the module. Every method but the constructor runs inside a transaction of its caller."""

    def __init__(self, store: Store, population: Population | None) -> None:
        self.store = store
        self.population = population
        if population is None:
            return
        for table in TABLES:
            store.execute(table)

    def deal(self, seq: int, version: int) -> None:
        """Decide who plays the other side of a task that is admitted at `version`."""
        if self.population is None:
            return
        rates = {member: record.win_rate for member, record in self._records().items()}
        opponent = self.population.deal(seq, version, rates)
        self.store.execute("DELETE FROM opponents WHERE seq = ?", (seq,))
        if opponent is not None:
            self.store.execute(
                "INSERT INTO opponents VALUES (?, ?, ?)", (seq, opponent.version, opponent.main)
            )

    def dealt(self, seq: int) -> Opponent | None:
        """Return who plays the other side of a task, None for the policy itself."""
        if self.population is None:
            return None
        row = self.store.row("SELECT member, main FROM opponents WHERE seq = ?", seq)
        return None if row is None else Opponent(row[0], bool(row[1]))

    def note(self, seq: int, group: Group) -> None:
        """Keep the games of a group that is put for good, whether it is trained or dropped."""
        opponent = self.dealt(seq)
        if opponent is None:
            return
        firsts: dict[int, Trajectory] = {}
        for trajectory in group.usable:
            firsts.setdefault(trajectory.rollout, trajectory)
        points = score([t.reward for t in firsts.values()])
        self.store.execute(
            "INSERT OR REPLACE INTO games VALUES (?, ?, ?, ?, ?)",
            (self.store.fact("version"), seq, opponent.version, points, len(firsts)),
        )

    def observe(self, version: int) -> None:
        """Let the games of `version`, which has just been followed by the next one, enter the win rates."""
        if self.population is None:
            return
        self.store.execute(f"DELETE FROM games WHERE version = ? AND {PLAYED_AGAIN}", (version,))
        self._save(self._folded(self._records(), version, version))

    def roll_back(self, version: int) -> None:
        """Return to the win rates of `version`; forget the later games of tasks that are to be played again."""
        if self.population is None:
            return
        self.store.execute(f"DELETE FROM games WHERE version >= ? AND {PLAYED_AGAIN}", (version,))
        self._save(self._folded({}, 0, version - 1))

    def stats(self) -> dict[str, float]:
        """Return the number of members, and the mean and lowest win rate against them; {} without a population."""
        if self.population is None:
            return {}
        members = self.population.members(self.store.fact("version"))
        numbers: dict[str, float] = {"members": len(members)}
        if members:
            records = self._records()
            rates = [records.get(member, Record()).win_rate for member in members]
            numbers |= {"win_rate_mean": sum(rates) / len(rates), "win_rate_min": min(rates)}
        return {f"opponents_{name}": value for name, value in numbers.items()}

    def _records(self) -> dict[int, Record]:
        found = self.store.rows("SELECT member, points, games FROM win_rates")
        return {member: Record(points, games) for member, points, games in found}

    def _folded(self, records: dict[int, Record], first: int, last: int) -> dict[int, Record]:
        """Return the records after the games of the versions from `first` to `last`."""
        games = self.store.rows(
            "SELECT member, points, played FROM games WHERE version BETWEEN ? AND ? ORDER BY version, seq",
            first, last,
        )  # fmt: skip
        for member, points, played in games:
            records[member] = records.get(member, Record()).after(points, played)
        return records

    def _save(self, records: dict[int, Record]) -> None:
        self.store.execute("DELETE FROM win_rates")
        self.store.executemany(
            "INSERT INTO win_rates VALUES (?, ?, ?)",
            [(member, record.points, record.games) for member, record in records.items()],
        )
