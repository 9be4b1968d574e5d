"""Rewards that see a whole group: its episodes are compared with each other, once all of them are played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from asyncrl.errors import EpisodeError
from asyncrl.extensions.table import rows
from asyncrl.rollout.verdict import Mode, Verdict
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import Task, Trajectory


class GroupReward(Protocol):
    """Scores the episodes of one group together. Serves many groups at once."""

    @property
    def mode(self) -> Mode: ...
    @property
    def timing(self) -> str:
        """The key of `Trajectory.timing` for the seconds it takes; "" for none."""
        ...

    async def score(self, task: Task, played: Sequence[Trajectory]) -> Sequence[Verdict | EpisodeError]:
        """Return a verdict for each episode, or why there is none; that episode then fails as the error says.

        played: the main agent's trajectory of each episode that did not fail, in the order of the group; at least one.
        Raises `EpisodeError` where none of them can be scored.
        """
        ...

    async def close(self) -> None: ...


def group_rewards(context: WorkerContext) -> tuple[GroupReward, ...]:
    """Return those of a run, in order."""
    return tuple(row.load()(context) for row in rows("group_rewards") if row.wanted(context.config))
