"""G episodes of one task at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from asyncrl.algo.curation.branch_width import by_confidence, confidence_floor
from asyncrl.algo.curation.early_end import ends_early
from asyncrl.algo.curation.first_error import before_first_error
from asyncrl.algo.curation.forks import Fork, least_certain
from asyncrl.algo.curation.hint_length import hint_turns
from asyncrl.errors import EpisodeError
from asyncrl.rollout.answers import with_answer
from asyncrl.rollout.given_prefix import GivenPrefix, branch, shortened
from asyncrl.rollout.player import (
    EpisodePlayer,
    EpisodeRequest,
    attempt_id,
    failed_episode,
    play_with_retries,
)
from asyncrl.rollout.token_branches import TokenBranches
from asyncrl.types import GREEDY_REWARD, Group, Lease, Status, Task, Trajectory

FORKS: dict[str, Callable[[Sequence[Trajectory], int], list[Fork]]] = {
    "uncertain": least_certain,
    "confidence": by_confidence,
    "first_error": before_first_error,
}
"""Where branches leave, by `rollout.fork_at`."""


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

    branches: episodes of a group that branch off a sibling.
    fork_at: where they do, a name of `FORKS`; with "confidence" a branch that becomes unlikely is pruned.
    inside_turns: where branches leave inside turns instead, what starts them.
    hinted: episodes of a group that start with the prefix that `hint` returns for the task.
    hints_by_difficulty: play the hinted episodes after the others, with as much of the prefix as the failures of these
        ask for (`asyncrl.algo.curation.hint_length`).
    baseline: plays one more, greedy episode of each group, whose reward is the others' baseline (ReMax).
    answer: gives the tokens of a task's right answer, which are noted on its trajectories (IGPO).
    decide_after: episodes that are played first; where all earn the same, they are the group. Not together with
        branches or a baseline.
    """

    def __init__(
        self,
        player: EpisodePlayer,
        branches: int = 0,
        hinted: int = 0,
        hint: Callable[[Task], GivenPrefix | None] = no_hint,
        baseline: EpisodePlayer | None = None,
        answer: Callable[[Task], list[int]] | None = None,
        decide_after: int = 0,
        hints_by_difficulty: bool = False,
        fork_at: str = "uncertain",
        inside_turns: TokenBranches | None = None,
    ) -> None:
        self.player = player
        self.branches = branches
        self.hinted = hinted
        self.hint = hint
        self.baseline = baseline
        self.answer = answer
        self.decide_after = decide_after
        self.hints_by_difficulty = hints_by_difficulty
        self.fork_at = fork_at
        self.inside_turns = inside_turns

    async def run_group(
        self, lease: Lease, worker: str, episode_timeout_s: float, seeds: Sequence[int] = ()
    ) -> Group:
        """See `GroupRunner` and, for attempts at an episode, `play_with_retries`.

        seeds: of the episodes' sampling, in their order; those beyond them sample as the player does.
        """
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
                seed=seeds[index] if index < len(seeds) else None,
            )

        whole = range(size - branches)
        hinted, later = self._hinted(hint, len(whole))
        at_once = whole[: len(whole) - len(later)]
        episodes = [(self.player, request(i, hint if i in hinted else None)) for i in at_once]
        if self.baseline is not None:
            greedy_request = replace(request(size, None), id=f"{worker}-{lease.id}-greedy")
            episodes.append((self.baseline, greedy_request))
        played = await play_all(episodes[: self.decide_after or None])
        if len(played) < len(episodes) and not ends_early(_numbered(played), len(played)):
            played += await play_all(episodes[len(played) :])
        greedy = played.pop()[0] if self.baseline is not None else None
        if hint is not None and later:
            asked = shortened(hint, hint_turns([episode[0] for episode in played], len(hint.turns)))
            played += await play_all([(self.player, request(i, asked)) for i in later])
        if branches:
            prefixes = await self._branch_prefixes(played, lease, worker, branches)
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

    def _hinted(self, hint: GivenPrefix | None, count: int) -> tuple[range, range]:
        """Return which of `count` episodes are hinted with the others, and which after these; the first is not
        among these."""
        if hint is None:
            return range(0), range(0)
        if self.hints_by_difficulty:
            return range(0), range(max(1, count - self.hinted), count)
        return range(self.hinted), range(0)

    async def _branch_prefixes(
        self, played: Sequence[Sequence[Trajectory]], lease: Lease, worker: str, count: int
    ) -> list[GivenPrefix]:
        """Return the prefixes of branches of the episodes played, `count` unless forks are too few."""
        parents = [episode[0] for episode in played if len(episode) == 1]
        sessions = [
            attempt_id(_episode_id(worker, lease, parent.episode_index), parent.info.get("attempts", 1))
            for parent in parents
        ]
        if self.inside_turns is not None:
            return await self.inside_turns.prefixes(parents, sessions, count, lease)
        floor = confidence_floor(parents) if self.fork_at == "confidence" else 0.0
        forks = FORKS[self.fork_at](parents, count)
        return [branch(parents[fork.parent], fork, sessions[fork.parent], floor) for fork in forks]


async def play_all(
    episodes: Sequence[tuple[EpisodePlayer, EpisodeRequest]],
) -> list[tuple[Trajectory, ...]]:
    """Play episodes at once, each with its attempts."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play_with_retries(player, request)) for player, request in episodes]
    return [task.result() for task in tasks]


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
