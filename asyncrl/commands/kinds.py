"""The words that follow a command and say which kind of it is meant."""

from __future__ import annotations

from asyncrl.extensions.table import rows

RUNS = ("list", "compare", "prune", "join-token")


def kinds_of(command: str) -> tuple[str, ...]:
    """Return the words of a command, none for one that has no kinds; the first is meant where another word follows."""
    if command == "runs":
        return RUNS
    seams = [row.kinds for row in rows("commands") if row.name == command and row.kinds]
    return tuple(row.name for seam in seams for row in rows(seam))
