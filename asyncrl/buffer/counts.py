"""The ledger's counts, each a query over the tasks."""

from __future__ import annotations

from typing import Any

from asyncrl.buffer.settings import LedgerSettings
from asyncrl.buffer.staleness import capacity
from asyncrl.buffer.store import Store

STATES = ("pending", "leased", "ready", "bound", "trained", "dropped", "failed")


def count(store: Store, settings: LedgerSettings) -> dict[str, Any]:
    """Return the run's counts. `offered_reward_mean` is over usable episodes, dropped groups included."""
    # The plus sign keeps SQLite from walking the index and fetching each row by itself.
    rows = store.rows(
        "SELECT state, COUNT(*), SUM(usable), SUM(reward_sum), SUM(tokens) FROM tasks GROUP BY +state"
    )
    numbers = dict.fromkeys(STATES, 0) | {row[0]: row[1] for row in rows}
    usable, reward, tokens = (sum(row[i] for row in rows) for i in (2, 3, 4))
    held = numbers["leased"] + numbers["ready"] + numbers["bound"]
    bound = store.fact("bound")
    slots = capacity(bound, settings.groups_per_step)
    in_flight = numbers.pop("leased")
    due = store.row("SELECT MIN(deadline) FROM tasks WHERE state IN ('leased', 'ready', 'bound')")[0]
    return {
        "version": store.fact("version"),
        **numbers,
        "in_flight": in_flight,
        "admitted": store.fact("leases"),
        "expired": store.fact("expired"),
        "slots": slots,
        "staleness_bound": bound,
        "fill": held / slots,
        "oldest_deadline": due,
        "plan_closed": bool(store.fact("closed")),
        "paused": bool(store.fact("paused")),
        "dropped_by_reason": _by(store, "reason", "dropped"),
        "failed_by_class": _by(store, "failure", "failed"),
        "quarantined": [worker for (worker,) in store.rows("SELECT worker FROM quarantine ORDER BY worker")],
        "offered_reward_mean": reward / usable if usable else None,
        "tokens_generated": tokens,
    }


def _by(store: Store, column: str, state: str) -> dict[str, int]:
    return dict(store.rows(f"SELECT {column}, COUNT(*) FROM tasks WHERE state = ? GROUP BY {column}", state))
