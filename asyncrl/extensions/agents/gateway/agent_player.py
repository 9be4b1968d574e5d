"""Episodes that an agent plays through a gateway.

request -> open an episode and its key -> run the agent -> finish -> the trajectories of its tree
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from asyncrl.chat.renderer import sampling_seed
from asyncrl.data.codec import task_to_map
from asyncrl.data.transcript import written_messages
from asyncrl.errors import AsyncRLError
from asyncrl.extensions.agents.gateway.agents import Agent, OpenEpisode, Report
from asyncrl.extensions.agents.gateway.export import MAX_TRAJECTORIES
from asyncrl.extensions.agents.gateway.open_episodes import Episodes
from asyncrl.extensions.agents.gateway.recorded_episode import EpisodeSpec, finish_body
from asyncrl.rollout.episode import EpisodeEnd, ended
from asyncrl.rollout.player import EpisodeRequest, failed_by
from asyncrl.types import FailureClass, Status, Trajectory

MAX_RUNNING = 64
AGENT_ERROR = "agent_error"
"""Component of the reward that says that the agent ended its episode itself, as where an environment says so."""
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
        over_http = episode.result is not None
        result = episode.finish(finish_body(reward, components, success, status, failure, error))
        self.episodes.ended(episode)
        if not over_http:
            # Whoever ended it over HTTP may ask for the answer again.
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
    max_trajectories: int = MAX_TRAJECTORIES
    """Trajectories of one episode at most."""
    response_format: Literal["ignore", "refuse"] = "ignore"
    """What becomes of calls that ask for JSON of a schema."""
    context_tokens: int = 0
    """What an agent is told of the longest conversation; 0 where that is not known."""


class AgentPlayer:
    """Lets an agent play episodes through a gateway. Implements `rollout.player.EpisodePlayer`."""

    def __init__(
        self, host: EpisodeHost, agent: Agent, settings: AgentSettings, ends: Sequence[EpisodeEnd] = ()
    ) -> None:
        self.host = host
        self.agent = agent
        self.settings = settings
        self.ends = tuple(ends)
        self._running = asyncio.Semaphore(settings.max_running)

    async def play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        """See `EpisodePlayer`. The episode's time starts when it is among the `max_running` agents."""
        try:
            async with self._running:
                request.on_open()
                return await self._play(request)
        except AsyncRLError as error:
            return failed_by(request, error)

    async def _play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        settings, task, index = self.settings, request.task, request.index
        seed = settings.seed
        spec = EpisodeSpec(
            task_id=task.id,
            episode_index=index,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            max_tokens_per_turn=settings.max_tokens_per_turn,
            max_calls=settings.max_calls,
            seed=None if seed is None else sampling_seed(seed, task.id, index, 0),
            min_version=request.min_version,
            order=request.order,
            max_trajectories=settings.max_trajectories,
            response_format=settings.response_format,
            headers=dict(self.agent.recording.headers),
            housekeeping=list(self.agent.recording.housekeeping),
        )
        episode = replace(
            await self.host.open(spec),
            context_tokens=settings.context_tokens or settings.max_tokens,
            turn_tokens=settings.max_tokens_per_turn,
            max_calls=settings.max_calls,
        )
        report: Report | None = None
        start = time.monotonic()
        try:
            limit_s = max(0.1, request.timeout_s - GRACE_S)
            described = {**task_to_map(task), "episode_index": index, "timeout_s": limit_s}
            report = await self.agent.run(described, episode, limit_s)
        finally:
            if report is None:
                # Cancelled: what the agent still asks for must not be sampled.
                await self.host.finish(episode.id)
        found = outcome(report, await self.host.describe(episode.id))
        failure = found.failure
        trajectories, _ = await self.host.finish(
            episode.id,
            reward=report.reward or 0.0,
            components={**report.components, **({AGENT_ERROR: 1.0} if found.gave_up else {})},
            success=False if found.gave_up else report.success,
            status=found.status,
            failure=failure,
            error=found.error,
        )
        wall_s = time.monotonic() - start
        timed = tuple(
            replace(t, timing={**t.timing, "env_s": wall_s - t.timing.get("engine_s", 0.0)})
            for t in trajectories
        )
        if failure is not None:
            return timed[:1]
        messages = written_messages(timed[0].conversation, len(timed[0].turns))
        return await ended(self.ends, timed, task, messages)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended; no status leaves it to the gateway."""

    status: Status | None = None
    failure: FailureClass | None = None
    error: str = ""
    gave_up: bool = False
    """Whether the agent ended the episode itself without a verdict, which earns nothing."""


def outcome(report: Report, episode: dict[str, Any]) -> Outcome:
    """Say how an episode ended, from the agent's report and the gateway's view.

    What the agent did is an outcome, and trained: an exit code, its deadline, a limit it ran into, with the reward that
    was reported, or none. Otherwise a policy could leave every task that it is losing. It failed where nothing can be
    said of the policy: no call was ever answered, an engine could not serve the last one, the agent was killed or could
    not be started, its function raised an error, or it ended well and reported no reward, against its contract.
    """
    answered, limit = episode["calls"] > 0, episode["limit"] or episode["cut"]
    judged = report.reward is not None or bool(episode["counters"].get("rewards", 0))
    problem = f"agent: {report.problem}"
    # A program that asked and was judged had been started.
    end = "exit" if report.end == "not started" and answered and report.reward is not None else report.end
    if not report.problem:
        if report.must_ask and not answered and not limit and not episode["lost"]:
            return Outcome(Status.FAILED, FailureClass.ENVIRONMENT, f"agent: {_unanswered(episode)}")
        if judged:
            return Outcome()
        error = "agent: reported no reward, neither at its end nor over HTTP"
        return Outcome(Status.FAILED, FailureClass.ENVIRONMENT, error)
    if episode["lost"]:
        return Outcome(Status.FAILED, FailureClass.INFRASTRUCTURE, problem)
    if answered and end == "deadline" and (judged or not episode["running"]):
        return Outcome(Status.TRUNCATED, None, problem, gave_up=not judged)
    if answered and end in ("exit", "raised") and limit:
        return Outcome(Status.TRUNCATED, None, limit, gave_up=not judged)
    if answered and end == "exit":
        return Outcome(Status.FINISHED, None, problem, gave_up=not judged)
    if not answered and limit:
        return Outcome(Status.TRUNCATED, None, limit)
    return Outcome(Status.FAILED, FailureClass.ENVIRONMENT, problem + _refusal(episode))


def _refusal(episode: dict[str, Any]) -> str:
    return f"; its last call was refused: {episode['refusal']}" if episode["refusal"] else ""


def _unanswered(episode: dict[str, Any]) -> str:
    return f"no call was ever answered{_refusal(episode)}"
