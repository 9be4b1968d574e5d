"""The ledger's counts: sums over the few rows of `counts`, which SQLite keeps up to date with the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.buffer.failures import failed_episodes
from asyncrl.buffer.ledger_settings import LedgerSettings
from asyncrl.buffer.staleness import free_slots
from asyncrl.buffer.store import Store

STATES = ("pending", "leased", "ready", "taken", "trained", "dropped", "failed")
FINISHED = ("ready", "taken", "trained", "dropped")


def count(store: Store, settings: LedgerSettings) -> dict[str, Any]:
    """Return the run's counts.

    `offered_episodes` are the usable episodes of all finished groups, dropped ones included; their rewards add up to
    `offered_reward_sum`, with the mean `offered_reward_mean`, and they have `offered_tokens_mean` sampled tokens.
    `trained_tokens_mean` is over those in batches: a large gap between the two lengths means that training does not see
    what is generated. `dropped_episodes` and `dropped_reward_sum` are those of dropped groups.
    """
    rows = store.rows("SELECT state, cause, deadline, tasks, usable, reward_sum, tokens FROM counts")
    numbers = dict.fromkeys(STATES, 0)
    for state, _, _, tasks, *_ in rows:
        numbers[state] += tasks
    usable, reward, tokens = (sum(row[i] for row in rows) for i in (4, 5, 6))
    offered = _length([row for row in rows if row[0] in FINISHED])
    dropped = [row for row in rows if row[0] == "dropped"]
    trained = _length([row for row in rows if row[0] in ("taken", "trained")])
    staleness_limit = store.fact("staleness_limit")
    slots = settings.slots(staleness_limit, store.fact("over_provision"))
    in_flight = numbers.pop("leased")
    deadlines = [row[2] for row in rows if row[2] >= 0]
    return {
        "version": store.fact("version"),
        **numbers,
        "in_flight": in_flight,
        "admitted": store.fact("leases"),
        "expired": store.fact("expired"),
        "restarted": store.fact("restarted"),
        "slots": slots,
        "free_slots": free_slots_of(store, settings),
        "staleness_limit": staleness_limit,
        "fill": sum(row[3] for row in rows if row[2] >= 0) / slots,
        "oldest_deadline": min(deadlines, default=None),
        "plan_closed": bool(store.fact("closed")),
        "paused": bool(store.fact("paused")),
        "dropped_by_reason": _by_cause(rows, "dropped"),
        "dropped_episodes": sum(row[4] for row in dropped),
        "dropped_reward_sum": sum(row[5] for row in dropped),
        "failed_by_class": _by_cause(rows, "failed"),
        "episodes": store.fact("episodes"),
        "failed_episodes": failed_episodes(store),
        "quarantined": [worker for (worker,) in store.rows("SELECT worker FROM quarantine ORDER BY worker")],
        "quarantine_reasons": dict(store.rows("SELECT worker, reason FROM quarantine ORDER BY worker")),
        "faulty_engines": dict(store.rows("SELECT engine, reason FROM faulty_engines ORDER BY engine")),
        "offered_episodes": usable,
        "offered_reward_sum": reward,
        "offered_reward_mean": reward / usable if usable else None,
        "offered_tokens_mean": offered,
        "trained_tokens_mean": trained,
        "tokens_generated": tokens,
    }


def settled(counts: Mapping[str, Any]) -> bool:
    """True when nothing is in flight, by the counts that `count` returned, and no further group can be admitted."""
    full = counts["free_slots"] <= 0
    return not counts["in_flight"] and (full or (counts["plan_closed"] and not counts["pending"]))


def free_slots_of(store: Store, settings: LedgerSettings) -> int:
    """Return how many more groups may be admitted now."""
    facts = store.facts()
    limit = facts["staleness_limit"]
    num_taken, _ = in_state(store, "taken")
    return free_slots(
        settings.slots(limit, facts["over_provision"]),
        held(store) - num_taken,
        num_taken,
        max(0, facts["taken_step"] - facts["version"] + 1),
        limit,
        settings.groups_per_step,
    )


def held(store: Store) -> int:
    """Return how many groups hold a slot."""
    return store.row("SELECT coalesce(SUM(tasks), 0) FROM counts WHERE deadline >= 0")[0]


def in_state(store: Store, state: str) -> tuple[int, int]:
    """Return how many tasks are in a state, and their sampled tokens."""
    query = "SELECT coalesce(SUM(tasks), 0), coalesce(SUM(tokens), 0) FROM counts WHERE state = ?"
    return store.row(query, state)


def by_deadline(store: Store, state: str) -> dict[int, int]:
    """Return how many groups of a state that holds a slot are due at each deadline."""
    return dict(store.rows("SELECT deadline, tasks FROM counts WHERE state = ?", state))


def _length(rows: list[tuple[Any, ...]]) -> float | None:
    """Mean sampled tokens of a usable episode."""
    usable = sum(row[4] for row in rows)
    return sum(row[6] for row in rows) / usable if usable else None


def _by_cause(rows: list[tuple[Any, ...]], state: str) -> dict[str, int]:
    return {row[1]: row[3] for row in rows if row[0] == state and row[3]}
