"""The words that follow a command and say which kind of it is meant."""

from __future__ import annotations

from asyncrl.extensions.table import Row, merged

RUNS = ("list", "compare", "prune", "join-token")
PLANS = (
    Row(name="memory", path="asyncrl.commands.plan:add_memory", place=20),
    Row(name="cluster", path="asyncrl.commands.plan:add_cluster", place=30),
)


def kinds_of(command: str) -> tuple[str, ...]:
    """Return the words of a command, none for one that has no kinds; the first is meant where another word follows."""
    if command == "plan":
        return tuple(row.name for row in plans())
    return RUNS if command == "runs" else ()


def plans() -> tuple[Row, ...]:
    """Return what `asyncrl plan` predicts, in the order `--help` shows it: the core's and what extensions add."""
    return merged("plans", PLANS)
