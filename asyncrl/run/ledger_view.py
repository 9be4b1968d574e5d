"""What a run's ledger says about groups and failures, read beside the buffer that writes it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

_QUERIES = {
    "groups": "SELECT state, COUNT(*) AS groups FROM tasks GROUP BY state ORDER BY 2 DESC",
    "dropped": "SELECT reason, COUNT(*) AS groups FROM tasks WHERE state = 'dropped' GROUP BY reason ORDER BY 2 DESC",
    "failures": "SELECT failure, episodes, groups, first, newest FROM failures ORDER BY episodes DESC",
    "quarantined": "SELECT worker, reason FROM quarantine ORDER BY worker",
}


def read_ledger(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the groups by state, the dropped ones by reason, the failed episodes by class with the first and the
    newest error, and the quarantined workers. Everything is empty where there is no ledger."""
    path = folder / "ledger.sqlite"
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _QUERIES}
    if not path.is_file():
        return found
    try:
        with closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=2.0)
        ) as database:
            database.row_factory = sqlite3.Row
            for name, query in _QUERIES.items():
                found[name] = [dict(row) for row in database.execute(query)]
    except sqlite3.Error:
        # The buffer may be writing it for the first time.
        return found
    return found
