"""A greedy episode beside those of a group: its reward is the others' baseline (ReMax, arXiv 2310.10505)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from asyncrl.errors import ConfigError
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.player import EpisodePlayer, EpisodeRequest, play_with_retries
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.types import GREEDY_REWARD, Lease, Status, Trajectory


class GreedyBaseline:
    """A `GroupStrategy` that has `player` play one more episode, which is not trained itself."""

    def __init__(self, player: EpisodePlayer) -> None:
        self.player = player

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        asked = replace(requests[0], index=len(requests), id=f"{worker}-{lease.id}-greedy", prefix=None)
        async with asyncio.TaskGroup() as group:
            greedy = group.create_task(play_with_retries(self.player, asked))
            others = group.create_task(play(requests))
        return [tuple(noted(t, greedy.result()[0]) for t in episode) for episode in others.result()]


def noted(trajectory: Trajectory, greedy: Trajectory) -> Trajectory:
    """Return a trajectory with the greedy episode's reward.

    Without it the episode has no baseline: it fails as the greedy one did.
    """
    if greedy.status is not Status.FAILED:
        return replace(trajectory, info={**trajectory.info, GREEDY_REWARD: greedy.reward})
    why = f"the greedy episode failed: {greedy.error}"
    return replace(trajectory, status=Status.FAILED, failure=greedy.failure, error=why, success=None)


def configured(parts: WorkerParts) -> GreedyBaseline | None:
    """Return the baseline of an objective that has a greedy one. Raises `ConfigError` where it cannot be played."""
    if "greedy" not in parts.needs:
        return None
    if parts.elsewhere:
        raise ConfigError("algo: an objective with a greedy baseline cannot be trained with an agent")
    if parts.policies:
        raise ConfigError("policies: must be left out where the objective has a greedy baseline")
    return GreedyBaseline(parts.make_player(0.0))
