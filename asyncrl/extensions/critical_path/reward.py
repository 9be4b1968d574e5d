"""An episode's critical path as its components, and a reward for a short one."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.extensions.critical_path.acceleration import acceleration_reward
from asyncrl.extensions.critical_path.lengths import lengths
from asyncrl.extensions.critical_path.settings import CriticalPathConfig
from asyncrl.rollout.verdict import Verdict, with_verdict
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.types import Message, Task, Trajectory


class CriticalPathReward:
    """Implements `episode.EpisodeEnd`."""

    def __init__(self, settings: CriticalPathConfig) -> None:
        self.settings = settings

    async def close(self) -> None:
        """See `EpisodeEnd`; there is nothing to close."""

    async def apply(
        self, played: Sequence[Trajectory], task: Task, messages: list[Message]
    ) -> tuple[Trajectory, ...]:
        """Return the trajectories of an episode, each with what the episode earns; the components are the main
        agent's."""
        found, settings = lengths(played), self.settings
        earned = acceleration_reward(found, played[0].success, settings.factor, settings.most)
        components = {"critical_path": float(found.critical), "acceleration": found.acceleration}
        first, *others = played
        return (
            with_verdict(first, Verdict(earned, components), "add"),
            *(with_verdict(one, Verdict(earned, {}), "add") for one in others),
        )


def rewarding(context: WorkerContext) -> CriticalPathReward:
    """Return what rewards the episodes of a run."""
    return CriticalPathReward(context.config.section(CriticalPathConfig))
