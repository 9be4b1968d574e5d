"""G episodes of one task at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.errors import EpisodeError
from asyncrl.rollout.episode import EpisodeRunner
from asyncrl.rollout.given_prefix import Guide, branch, choose_forks, hint
from asyncrl.types import GREEDY_REWARD, FailureClass, Group, Lease, Status, Trajectory

MAX_ATTEMPTS = {FailureClass.INFRASTRUCTURE: 3, FailureClass.ENVIRONMENT: 2}
"""Plays of an episode that fails in this way, each in a fresh session; what is not listed is played once."""
RETRY_PAUSE_S = 0.5


@runtime_checkable
class GroupRunner(Protocol):
    """Plays groups in a way of its own, as agents do behind a gateway."""

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group: ...


async def run_group(
    runner: EpisodeRunner | GroupRunner, lease: Lease, worker: str, episode_timeout_s: float
) -> Group:
    """Run the leased group.

    An episode that the environment or infrastructure fails is played again from its start, elsewhere where there is
    an elsewhere, and in the end recorded as failed. `info["attempts"]` counts the plays of one that took several.
    """
    if isinstance(runner, GroupRunner):
        return await runner.run_group(lease, worker, episode_timeout_s)
    settings = runner.settings
    branches = min(settings.branches, lease.group_size - 1)
    whole = range(lease.group_size - branches)
    try:
        shown = _hint(runner, lease) if settings.hinted else None
    except EpisodeError as error:
        failed = [_failed(lease, index, error.failure, str(error)) for index in range(lease.group_size)]
        return Group(lease.id, lease.task, lease.version, tuple(failed), worker)
    guides = [shown if index < settings.hinted else None for index in whole]
    episodes = [
        _run_episode(runner, lease, index, _name(worker, lease, index), episode_timeout_s, guides[index])
        for index in whole
    ]
    if runner.baseline is not None:
        name = f"{worker}-{lease.id}-greedy"
        episodes.append(_run_episode(runner.baseline, lease, lease.group_size, name, episode_timeout_s))
    played = await _all(episodes)
    greedy = played.pop()[0] if runner.baseline is not None else None
    if branches:
        played += await _branches(runner, lease, worker, episode_timeout_s, played)
    branching = any(len(episode) > 1 for episode in played)
    trajectories = number_branches(played) if branching else [episode[0] for episode in played]
    if greedy is not None:
        trajectories = _note_greedy(trajectories, greedy)
    return Group(
        id=lease.id,
        task=lease.task,
        version=lease.version,
        trajectories=tuple(trajectories),
        worker=worker,
    )


async def _branches(
    runner: EpisodeRunner,
    lease: Lease,
    worker: str,
    episode_timeout_s: float,
    played: Sequence[Sequence[Trajectory]],
) -> list[tuple[Trajectory, ...]]:
    """Play the group's remaining episodes as branches of those played; as whole ones where there are too few forks."""
    missing = range(len(played), lease.group_size)
    parents = [episode[0] for episode in played if len(episode) == 1]
    guides: list[Guide | None] = []
    for fork in choose_forks(parents, len(missing)):
        parent = parents[fork.parent]
        session = f"{_name(worker, lease, parent.episode_index)}-{parent.info.get('attempts', 1)}"
        guides.append(branch(parent, fork, session))
    guides += [None] * (len(missing) - len(guides))
    return await _all(
        [
            _run_episode(runner, lease, index, _name(worker, lease, index), episode_timeout_s, guide)
            for index, guide in zip(missing, guides, strict=True)
        ]
    )


async def _all(
    episodes: Sequence[Coroutine[Any, Any, tuple[Trajectory, ...]]],
) -> list[tuple[Trajectory, ...]]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(episode) for episode in episodes]
    return [task.result() for task in tasks]


def _hint(runner: EpisodeRunner, lease: Lease) -> Guide | None:
    return hint(lease.task, runner.settings.hint_turns, runner.renderer.assistant)


def _name(worker: str, lease: Lease, index: int) -> str:
    return f"{worker}-{lease.id}-{index}"


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


async def _run_episode(
    runner: EpisodeRunner,
    lease: Lease,
    index: int,
    episode_id: str,
    timeout_s: float,
    guide: Guide | None = None,
) -> tuple[Trajectory, ...]:
    played: tuple[Trajectory, ...]
    for attempt in itertools.count(1):
        try:
            # Its time begins with its session: until then it may wait for a place, which has a deadline of its own.
            async with asyncio.timeout(None) as clock:
                played = await runner.play(
                    lease.task,
                    index,
                    f"{episode_id}-{attempt}",
                    lease.version,
                    guide,
                    lease.order,
                    partial(_start, clock, timeout_s),
                )
        except TimeoutError:
            played = (_timed_out(lease, index, timeout_s),)
        failure = played[0].failure
        if failure is None or attempt >= MAX_ATTEMPTS.get(failure, 1):
            break
        await asyncio.sleep(RETRY_PAUSE_S * attempt)
    if attempt == 1:
        return played
    return tuple(replace(t, info={**t.info, "attempts": attempt}) for t in played)


def _start(clock: asyncio.Timeout, timeout_s: float) -> None:
    clock.reschedule(asyncio.get_running_loop().time() + timeout_s)


def _timed_out(lease: Lease, index: int, timeout_s: float) -> Trajectory:
    error = f"episode did not end within rollout.episode_timeout_s={timeout_s:g}"
    return _failed(lease, index, FailureClass.INFRASTRUCTURE, error)


def _failed(lease: Lease, index: int, failure: FailureClass, error: str) -> Trajectory:
    return TrajectoryBuilder(lease.task, index).finish(Status.FAILED, failure, error)
