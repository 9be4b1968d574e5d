"""Rewards that see a whole group are asked once it is played; episodes that failed are no part of what they see."""

from __future__ import annotations

import time
from collections.abc import Sequence

from asyncrl.errors import EpisodeError
from asyncrl.rollout.group import Episode, Play
from asyncrl.rollout.group_reward import GroupReward
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.strategies.parts import WorkerParts
from asyncrl.rollout.verdict import Verdict, all_with_verdict, timed, without_verdict
from asyncrl.types import Lease, Task


class GroupRewards:
    """A `GroupStrategy` that has each of its rewards score the group, in order."""

    def __init__(self, rewards: Sequence[GroupReward]) -> None:
        self.rewards = tuple(rewards)

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """See `GroupStrategy`."""
        played = await play(requests)
        for reward in self.rewards:
            played = await rewarded(reward, lease.task, played)
        return played


async def rewarded(reward: GroupReward, task: Task, played: Sequence[Episode]) -> list[Episode]:
    """Return a group's episodes with the verdicts of a reward on those that did not fail. One without a verdict fails,
    and only its main agent's trajectory is returned."""
    found, start = list(played), time.monotonic()
    places = [place for place, episode in enumerate(played) if episode[0].failure is None]
    if not places:
        return found
    verdicts: Sequence[Verdict | EpisodeError]
    try:
        verdicts = await reward.score(task, [played[place][0] for place in places])
    except EpisodeError as error:
        verdicts = [error] * len(places)
    seconds = time.monotonic() - start
    for place, verdict in zip(places, verdicts, strict=True):
        if isinstance(verdict, EpisodeError):
            episode: Episode = (without_verdict(played[place][0], verdict),)
        else:
            episode = all_with_verdict(played[place], verdict, reward.mode)
        first = timed(episode[0], reward.timing, seconds) if reward.timing else episode[0]
        found[place] = (first, *episode[1:])
    return found


def configured(parts: WorkerParts) -> GroupRewards | None:
    """Return what asks a run's rewards of whole groups; None where it has none."""
    return GroupRewards(parts.rewards) if parts.rewards else None
