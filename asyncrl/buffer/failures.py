"""Failed episodes, counted by class: what a run loses although the policy did nothing wrong."""

from __future__ import annotations

from typing import Any

from asyncrl.buffer.store import Store
from asyncrl.types import FailureClass, Group

MAX_TEXT = 4000


def note_failures(store: Store, group: Group, lost_by: str) -> None:
    """Count a group's episodes and those of them that failed; `lost_by` is the class that lost the group, if any.

    Runs inside a transaction of its caller.
    """
    store.set_fact("episodes", store.fact("episodes") + len({t.rollout for t in group.trajectories}))
    failed: dict[str, dict[int, str]] = {}
    for t in group.trajectories:
        if t.failure is not None and t.failure is not FailureClass.AGENT:
            failed.setdefault(str(t.failure), {}).setdefault(t.rollout, t.error)
    for failure, episodes in failed.items():
        store.execute(
            "INSERT INTO failures VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT (failure) DO UPDATE SET "
            "episodes = episodes + ?2, groups = groups + ?3, newest = ?4",
            (failure, len(episodes), int(failure == lost_by), next(iter(episodes.values()))[:MAX_TEXT]),
        )


def failed_episodes(store: Store) -> dict[str, dict[str, Any]]:
    """Return `{episodes, groups, first, newest}` by class of failure."""
    rows = store.rows("SELECT failure, episodes, groups, first, newest FROM failures ORDER BY failure")
    names = ("episodes", "groups", "first", "newest")
    return {failure: dict(zip(names, values, strict=True)) for failure, *values in rows}
