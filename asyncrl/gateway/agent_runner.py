"""Groups of episodes that agents play: the rollout worker's other way to fill a lease.

lease --> G episodes, each: open a key -> run the agent -> finish -> the trajectories of its tree --> group
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from asyncrl.chat.renderer import sampling_seed
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.data.codec import task_to_map
from asyncrl.errors import AsyncRLError
from asyncrl.gateway.agents import Agent, OpenEpisode, Report
from asyncrl.gateway.open_episodes import Episodes
from asyncrl.gateway.recorded_episode import EpisodeSpec, finish_body
from asyncrl.rollout.group import MAX_ATTEMPTS, RETRY_PAUSE_S, number_branches
from asyncrl.types import FailureClass, Group, Lease, Status, Task, Trajectory

MAX_RUNNING = 64
GRACE_S = 5.0
"""How long before the episode's deadline its agent is ended, so that its result is still read."""


class EpisodeHost(Protocol):
    """Opens and finishes episodes: a gateway in this process, or the client of one elsewhere."""

    async def open(self, spec: EpisodeSpec) -> OpenEpisode: ...
    async def describe(self, episode_id: str) -> dict[str, Any]: ...
    async def finish(
        self,
        episode_id: str,
        reward: float = 0.0,
        components: dict[str, float] | None = None,
        success: bool | None = None,
        status: Status | None = None,
        failure: FailureClass | None = None,
        error: str = "",
    ) -> tuple[Sequence[Trajectory], dict[str, Any]]: ...


class LocalHost:
    """The episodes of a gateway in this process, served at `url`."""

    def __init__(self, episodes: Episodes, url: str) -> None:
        self.episodes = episodes
        self.url = url

    async def open(self, spec: EpisodeSpec) -> OpenEpisode:
        episode = self.episodes.open(spec)
        return OpenEpisode(episode.id, episode.key, self.url, episode.reward_key)

    async def describe(self, episode_id: str) -> dict[str, Any]:
        return self.episodes.by_id(episode_id).describe()

    async def finish(
        self,
        episode_id: str,
        reward: float = 0.0,
        components: dict[str, float] | None = None,
        success: bool | None = None,
        status: Status | None = None,
        failure: FailureClass | None = None,
        error: str = "",
    ) -> tuple[Sequence[Trajectory], dict[str, Any]]:
        episode = self.episodes.by_id(episode_id)
        result = episode.finish(finish_body(reward, components, success, status, failure, error))
        self.episodes.ended(episode)
        self.episodes.drop(episode)
        return result


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What every episode of a worker shares. Sizes in tokens; 0 means no limit of its own."""

    temperature: float = 1.0
    seed: int | None = None
    """Run seed for repeatable sampling."""
    max_tokens: int = 0
    max_tokens_per_turn: int = 0
    max_calls: int = 0
    max_running: int = MAX_RUNNING
    """Agents at once."""


class AgentRunner:
    """Plays leased groups with an agent. Implements `rollout.group.GroupRunner`."""

    def __init__(self, host: EpisodeHost, agent: Agent, settings: AgentSettings) -> None:
        self.host = host
        self.agent = agent
        self.settings = settings
        self._places = asyncio.Semaphore(settings.max_running)

    async def run_group(self, lease: Lease, worker: str, episode_timeout_s: float) -> Group:
        """Play the leased group. An episode may give several trajectories, see `number_branches`."""
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._episode(lease, index, episode_timeout_s))
                for index in range(lease.group_size)
            ]
        episodes = [task.result() for task in tasks]
        return Group(lease.id, lease.task, lease.version, tuple(number_branches(episodes)), worker)

    async def _episode(self, lease: Lease, index: int, timeout_s: float) -> list[Trajectory]:
        for attempt in itertools.count(1):
            try:
                async with self._places, asyncio.timeout(timeout_s):
                    found = await self._play(lease, index, timeout_s)
            except TimeoutError:
                error = f"episode did not end within rollout.episode_timeout_s={timeout_s:g}"
                found = [_failed(lease.task, index, FailureClass.INFRASTRUCTURE, error)]
            except AsyncRLError as error:
                text = f"{type(error).__name__}: {error}"
                found = [_failed(lease.task, index, FailureClass.INFRASTRUCTURE, text)]
            failure = found[0].failure
            if failure is None or attempt >= MAX_ATTEMPTS.get(failure, 1):
                break
            await asyncio.sleep(RETRY_PAUSE_S * attempt)
        return found

    async def _play(self, lease: Lease, index: int, timeout_s: float) -> list[Trajectory]:
        settings = self.settings
        seed = settings.seed
        spec = EpisodeSpec(
            task_id=lease.task.id,
            episode_index=index,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            max_tokens_per_turn=settings.max_tokens_per_turn,
            max_calls=settings.max_calls,
            seed=None if seed is None else sampling_seed(seed, lease.task.id, index, 0),
            min_version=lease.version,
            order=lease.order,
        )
        episode = await self.host.open(spec)
        report: Report | None = None
        start = time.monotonic()
        try:
            task = {**task_to_map(lease.task), "episode_index": index}
            report = await self.agent.run(task, episode, max(0.1, timeout_s - GRACE_S))
        finally:
            if report is None:
                # Cancelled: whatever the agent still asks for must not go on.
                await self.host.finish(episode.id)
        status, failure, error = judge(report, await self.host.describe(episode.id))
        trajectories, _ = await self.host.finish(
            episode.id,
            reward=report.reward or 0.0,
            components=report.components,
            success=report.success,
            status=status,
            failure=failure,
            error=error,
        )
        wall_s = time.monotonic() - start
        timed = [
            replace(t, timing={**t.timing, "env_s": wall_s - t.timing.get("engine_s", 0.0)})
            for t in trajectories
        ]
        return timed[:1] if failure is not None else timed


def judge(report: Report, episode: dict[str, Any]) -> tuple[Status | None, FailureClass | None, str]:
    """Say how an episode ended, from the agent's report and the gateway's view. None leaves it to the gateway.

    An agent that breaks down because a call was refused for a limit is truncated; because no engine could serve, is
    failed by infrastructure; for any other reason is failed by its environment, which is the agent itself. One that
    says nothing of a reward has broken its contract.
    """
    counters = episode["counters"]
    if report.problem:
        if episode["limit"]:
            return Status.TRUNCATED, None, episode["limit"]
        lost = counters.get("infrastructure_errors", 0) > 0
        failure = FailureClass.INFRASTRUCTURE if lost else FailureClass.ENVIRONMENT
        return Status.FAILED, failure, f"agent: {report.problem}"
    if report.reward is None and not counters.get("rewards", 0):
        error = "agent: reported no reward, neither at its end nor over HTTP"
        return Status.FAILED, FailureClass.ENVIRONMENT, error
    return None, None, ""


def _failed(task: Task, index: int, failure: FailureClass, error: str) -> Trajectory:
    return TrajectoryBuilder(task, index).finish(Status.FAILED, failure, error)
