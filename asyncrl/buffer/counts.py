"""The ledger's counts, each a query over the tasks."""

from __future__ import annotations

from typing import Any

from asyncrl.buffer.failures import failed_episodes
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.store import Store

STATES = ("pending", "leased", "ready", "taken", "trained", "dropped", "failed")
FINISHED = ("ready", "taken", "trained", "dropped")


def count(store: Store, settings: LedgerSettings) -> dict[str, Any]:
    """Return the run's counts.

    `offered_reward_mean` and `offered_tokens_mean` (sampled tokens of an episode) are over the usable episodes of all
    finished groups, dropped ones included; `trained_tokens_mean` is over those in batches. A large gap between
    the two lengths means that training does not see what is generated.
    """
    # The plus sign keeps SQLite from walking the index and fetching each row separately.
    rows = store.rows(
        "SELECT state, COUNT(*), SUM(usable), SUM(reward_sum), SUM(tokens) FROM tasks GROUP BY +state"
    )
    numbers = dict.fromkeys(STATES, 0) | {row[0]: row[1] for row in rows}
    usable, reward, tokens = (sum(row[i] for row in rows) for i in (2, 3, 4))
    offered = _length([row for row in rows if row[0] in FINISHED])
    trained = _length([row for row in rows if row[0] in ("taken", "trained")])
    held = numbers["leased"] + numbers["ready"] + numbers["taken"]
    staleness_limit = store.fact("staleness_limit")
    slots = settings.slots(staleness_limit, store.fact("over_provision"))
    in_flight = numbers.pop("leased")
    due = store.row("SELECT MIN(deadline) FROM tasks WHERE state IN ('leased', 'ready', 'taken')")[0]
    return {
        "version": store.fact("version"),
        **numbers,
        "in_flight": in_flight,
        "admitted": store.fact("leases"),
        "expired": store.fact("expired"),
        "restarted": store.fact("restarted"),
        "slots": slots,
        "staleness_limit": staleness_limit,
        "fill": held / slots,
        "oldest_deadline": due,
        "plan_closed": bool(store.fact("closed")),
        "paused": bool(store.fact("paused")),
        "dropped_by_reason": _by(store, "reason", "dropped"),
        "failed_by_class": _by(store, "failure", "failed"),
        "episodes": store.fact("episodes"),
        "failed_episodes": failed_episodes(store),
        "quarantined": [worker for (worker,) in store.rows("SELECT worker FROM quarantine ORDER BY worker")],
        "quarantine_reasons": dict(store.rows("SELECT worker, reason FROM quarantine ORDER BY worker")),
        "offered_reward_mean": reward / usable if usable else None,
        "offered_tokens_mean": offered,
        "trained_tokens_mean": trained,
        "tokens_generated": tokens,
    }


def _length(rows: list[tuple[Any, ...]]) -> float | None:
    """Mean sampled tokens of a usable episode."""
    usable = sum(row[2] for row in rows)
    return sum(row[4] for row in rows) / usable if usable else None


def _by(store: Store, column: str, state: str) -> dict[str, int]:
    return dict(store.rows(f"SELECT {column}, COUNT(*) FROM tasks WHERE state = ? GROUP BY {column}", state))
