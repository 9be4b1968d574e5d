"""G episodes of one task at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from asyncrl.algo.curation.forks import least_certain
from asyncrl.errors import EpisodeError
from asyncrl.rollout.answers import with_answer
from asyncrl.rollout.given_prefix import GivenPrefix, branch
from asyncrl.rollout.player import (
    EpisodePlayer,
    EpisodeRequest,
    attempt_id,
    failed_episode,
    play_with_retries,
)
from asyncrl.types import GREEDY_REWARD, Group, Lease, Status, Task, Trajectory


class GroupRunner(Protocol):
    """Plays leased groups, several at once."""

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """Play the leased group and return it; failed episodes are part of it."""
        ...


def no_hint(task: Task) -> GivenPrefix | None:
    """Give no hint."""
    return None


class EpisodeGroupRunner:
    """A `GroupRunner` that plays the episodes of a group with one player.

    branches: episodes of a group that branch off a sibling, before the turns about which the policy was least certain.
    hinted: episodes of a group that start with the prefix that `hint` returns for the task.
    baseline: plays one more, greedy episode of each group, whose reward is the others' baseline (ReMax).
    answer: gives the tokens of a task's right answer, which are noted on its trajectories (IGPO).
    """

    def __init__(
        self,
        player: EpisodePlayer,
        branches: int = 0,
        hinted: int = 0,
        hint: Callable[[Task], GivenPrefix | None] = no_hint,
        baseline: EpisodePlayer | None = None,
        answer: Callable[[Task], list[int]] | None = None,
    ) -> None:
        self.player = player
        self.branches = branches
        self.hinted = hinted
        self.hint = hint
        self.baseline = baseline
        self.answer = answer

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """See `GroupRunner` and, for attempts at an episode, `play_with_retries`."""
        size, branches = lease.group_size, min(self.branches, lease.group_size - 1)
        try:
            hint = self.hint(lease.task) if self.hinted else None
            answer = self.answer(lease.task) if self.answer is not None else None
        except EpisodeError as error:
            failed = [failed_episode(lease.task, i, error.failure, str(error)) for i in range(size)]
            return Group(lease.id, lease.task, lease.version, tuple(failed), worker)

        def request(index: int, prefix: GivenPrefix | None) -> EpisodeRequest:
            return EpisodeRequest(
                task=lease.task,
                index=index,
                id=_episode_id(worker, lease, index),
                min_version=lease.version,
                order=lease.order,
                prefix=prefix,
                max_turns=lease.max_turns,
                examples=lease.examples,
                timeout_s=episode_timeout_s,
            )

        whole = range(size - branches)
        hinted = range(self.hinted if hint is not None else 0)
        episodes = [(self.player, request(i, hint if i in hinted else None)) for i in whole]
        if self.baseline is not None:
            greedy_request = replace(request(size, None), id=f"{worker}-{lease.id}-greedy")
            episodes.append((self.baseline, greedy_request))
        played = await play_all(episodes)
        greedy = played.pop()[0] if self.baseline is not None else None
        if branches:
            prefixes = _branch_prefixes(played, lease, worker, branches)
            missing = branches - len(prefixes)
            requests = [
                request(i, prefix) for i, prefix in enumerate([*prefixes, *[None] * missing], len(whole))
            ]
            played += await play_all([(self.player, one) for one in requests])
        trajectories = _numbered(played)
        if greedy is not None:
            trajectories = _note_greedy(trajectories, greedy)
        if answer is not None:
            trajectories = with_answer(trajectories, answer)
        return Group(lease.id, lease.task, lease.version, tuple(trajectories), worker)


async def play_all(
    episodes: Sequence[tuple[EpisodePlayer, EpisodeRequest]],
) -> list[tuple[Trajectory, ...]]:
    """Play episodes at once, each with its attempts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play_with_retries(player, request)) for player, request in episodes]
    return [task.result() for task in tasks]


def _branch_prefixes(
    played: Sequence[Sequence[Trajectory]], lease: Lease, worker: str, count: int
) -> list[GivenPrefix]:
    """Return the prefixes of branches of the episodes played, `count` unless forks are too few."""
    parents = [episode[0] for episode in played if len(episode) == 1]
    sessions = [
        attempt_id(_episode_id(worker, lease, parent.episode_index), parent.info.get("attempts", 1))
        for parent in parents
    ]
    forks = least_certain(parents, count)
    return [branch(parents[fork.parent], fork, sessions[fork.parent]) for fork in forks]


def _episode_id(worker: str, lease: Lease, index: int) -> str:
    return f"{worker}-{lease.id}-{index}"


def _numbered(episodes: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    several = any(len(episode) > 1 for episode in episodes)
    return number_branches(episodes) if several else [episode[0] for episode in episodes]


def number_branches(episodes: Sequence[Sequence[Trajectory]]) -> list[Trajectory]:
    """Give every trajectory of a group its own `episode_index`.

    The first branch of episode i keeps i, so that the first G trajectories are one for each episode; further branches
    follow. `info["rollout"]` is i for all of them.
    """
    firsts = [
        replace(e[0], episode_index=i, info={**e[0].info, "rollout": i}) for i, e in enumerate(episodes)
    ]
    more = [(i, t) for i, e in enumerate(episodes) for t in e[1:]]
    rest = [
        replace(t, episode_index=number, info={**t.info, "rollout": i})
        for number, (i, t) in enumerate(more, len(episodes))
    ]
    return firsts + rest


def _note_greedy(trajectories: list[Trajectory], greedy: Trajectory) -> list[Trajectory]:
    """Write the greedy episode's reward into the others; it is not trained itself.

    Without it the episodes have no baseline: they fail as the greedy one did.
    """
    if greedy.status is Status.FAILED:
        why = f"the greedy episode failed: {greedy.error}"
        return [
            replace(t, status=Status.FAILED, failure=greedy.failure, error=why, success=None)
            for t in trajectories
        ]
    return [replace(t, info={**t.info, GREEDY_REWARD: greedy.reward}) for t in trajectories]
