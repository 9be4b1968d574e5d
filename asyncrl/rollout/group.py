"""A leased group: G episodes of one task at once.

The plain way asks for G equal episodes. A `GroupStrategy` stands around it: it changes what is asked, asks for more, or
changes what came back. `rollout.strategies.table` names all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol

from asyncrl.rollout.player import EpisodePlayer, EpisodeRequest, play_with_retries
from asyncrl.types import Group, Lease, Trajectory

Episode = tuple[Trajectory, ...]
"""The trajectories of one episode, the main agent's first."""
Play = Callable[[Sequence[EpisodeRequest]], Coroutine[Any, Any, list[Episode]]]
"""Plays episodes at once, each with its attempts, and returns them in the order of their requests."""


class GroupRunner(Protocol):
    """Plays leased groups, several at once."""

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """Play the leased group and return it; failed episodes are part of it."""
        ...


class GroupStrategy(Protocol):
    """One way to play groups otherwise than plainly. Its methods serve several groups at once."""

    async def play(
        self, lease: Lease, worker: str, requests: Sequence[EpisodeRequest], play: Play
    ) -> list[Episode]:
        """Return one episode for each request, in their order.

        play: plays episodes plainly, or as the strategies inside this one do. It may be called several times.
        """
        ...


class EpisodeGroupRunner:
    """A `GroupRunner` that plays the episodes of a group with one player.

    strategies: how groups are played otherwise than plainly, the outermost first.
    """

    def __init__(self, player: EpisodePlayer, strategies: Sequence[GroupStrategy] = ()) -> None:
        self.player = player
        self.strategies = tuple(strategies)

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """See `GroupRunner` and, for attempts at an episode, `play_with_retries`."""
        requests = [
            EpisodeRequest(
                task=lease.task,
                index=index,
                id=f"{worker}-{lease.id}-{index}",
                min_version=lease.version,
                order=lease.order,
                max_turns=lease.max_turns,
                timeout_s=episode_timeout_s,
            )
            for index in range(lease.group_size)
        ]
        episodes = await self._play(lease, worker, self.strategies, requests)
        return Group(lease.id, lease.task, lease.version, tuple(numbered(episodes)), worker)

    async def _play(
        self,
        lease: Lease,
        worker: str,
        strategies: tuple[GroupStrategy, ...],
        requests: Sequence[EpisodeRequest],
    ) -> list[Episode]:
        if not strategies:
            return await play_all(self.player, requests)
        first, *inner = strategies

        async def play(asked: Sequence[EpisodeRequest]) -> list[Episode]:
            return await self._play(lease, worker, tuple(inner), asked)

        return await first.play(lease, worker, requests, play)


async def play_all(player: EpisodePlayer, requests: Sequence[EpisodeRequest]) -> list[Episode]:
    """Play episodes at once, each with its attempts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play_with_retries(player, request)) for request in requests]
    return [task.result() for task in tasks]


def numbered(episodes: Sequence[Episode]) -> list[Trajectory]:
    """Return the trajectories of a group, each with an `episode_index` of its own.

    Where an episode has several trajectories, the first one of episode i keeps i, so that the first G trajectories are
    one for each episode; the others follow. `info["rollout"]` is then i for all of them.
    """
    if all(len(episode) == 1 for episode in episodes):
        return [episode[0] for episode in episodes]
    return renumbered(episodes)


def renumbered(episodes: Sequence[Episode]) -> list[Trajectory]:
    """As `numbered`, and `info["rollout"]` is there in any case."""
    firsts = [
        replace(e[0], episode_index=i, info={**e[0].info, "rollout": i}) for i, e in enumerate(episodes)
    ]
    more = [(i, t) for i, e in enumerate(episodes) for t in e[1:]]
    rest = [
        replace(t, episode_index=number, info={**t.info, "rollout": i})
        for number, (i, t) in enumerate(more, len(episodes))
    ]
    return firsts + rest
