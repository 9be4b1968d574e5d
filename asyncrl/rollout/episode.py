"""One episode: open a session, sample a turn, step, append the observation, until it ends.

A bad rollout is data: whatever goes wrong ends as the status of a `Trajectory`, recorded once. Bugs raise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from asyncrl.env.protocol import Action, Step
from asyncrl.errors import DeadlineError, EpisodeError, InfrastructureError, InputError
from asyncrl.rollout.builder import TrajectoryBuilder
from asyncrl.rollout.generate import GenerateRequest, Generator
from asyncrl.rollout.judge import Judging
from asyncrl.rollout.render import ChatRenderer, Limits, sampling_seed
from asyncrl.types import FailureClass, Message, Status, Task, Trajectory


class Session(Protocol):
    """An open environment session, wherever it runs."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    max_turns: int

    async def step(self, step_index: int, action: Action, timeout_s: float) -> Step: ...
    async def close(self) -> None: ...


class EnvOpener(Protocol):
    """Opens sessions: over HTTP, in process, or a gateway's."""

    async def open(self, task: Task, config: dict[str, Any]) -> Session: ...


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """What every episode of a worker shares. Times in seconds."""

    limits: Limits
    """`max_turns` 0 takes the environment's own."""
    temperature: float = 1.0
    seed: int | None = None
    """Run seed for repeatable sampling; None lets the engine draw."""
    step_timeout_s: float = 30.0
    env_config: dict[str, Any] | None = None
    check_history: bool = False
    """Compare the tokens with fresh renderings of the conversation; note whether they agree and where they fork."""


class EpisodeRunner:
    """Runs episodes against a generator and an environment opener."""

    def __init__(
        self,
        generator: Generator,
        envs: EnvOpener,
        renderer: ChatRenderer,
        parse: Callable[[str], Action],
        settings: EpisodeSettings,
        baseline: EpisodeRunner | None = None,
        judging: Judging | None = None,
    ) -> None:
        self.generator = generator
        self.envs = envs
        self.renderer = renderer
        self.parse = parse
        self.settings = settings
        self.judging = judging
        self.baseline = baseline
        """Plays one more, greedy episode of each group, whose reward is the others' baseline (ReMax)."""

    async def run(self, task: Task, episode_index: int, episode_id: str, min_version: int = 0) -> Trajectory:
        """Play one episode and have it judged. `episode_id` must be unique among running episodes.

        min_version: the oldest policy version that may sample; engines with older weights are passed over.
        """
        builder = TrajectoryBuilder(task, episode_index)
        trajectory = await self._run(builder, episode_id, min_version)
        if self.judging is None or trajectory.failure is not None:
            return trajectory
        start = time.monotonic()
        judged = await self.judging.apply(trajectory, task, builder.conversation)
        return replace(judged, timing={**judged.timing, "judge_s": time.monotonic() - start})

    async def _run(self, builder: TrajectoryBuilder, episode_id: str, min_version: int) -> Trajectory:
        """Play the episode; its session is closed when this returns."""
        task = builder.task
        try:
            start = time.monotonic()
            session = await self.envs.open(task, self.settings.env_config or {})
            builder.env_s += time.monotonic() - start
        except EpisodeError as error:
            return builder.finish(Status.FAILED, error.failure, str(error))
        try:
            return await self._play(builder, session, episode_id, min_version)
        except EpisodeError as error:
            return builder.finish(Status.FAILED, error.failure, str(error))
        except (InputError, DeadlineError) as error:
            return builder.finish(
                Status.FAILED, FailureClass.INFRASTRUCTURE, f"{type(error).__name__}: {error}"
            )
        finally:
            await self._close(session)

    async def _play(
        self, builder: TrajectoryBuilder, session: Session, episode_id: str, min_version: int
    ) -> Trajectory:
        limits = self.settings.limits
        max_turns = min(limits.max_turns or session.max_turns, session.max_turns)
        conversation = builder.conversation = list(session.messages)
        builder.add_context(self.renderer.opening(session.messages, session.tools))
        for turn in range(max_turns):
            room = limits.max_tokens - builder.num_tokens
            if room < 1:
                return self._end(builder, conversation, session, Status.TRUNCATED, "max_tokens")
            most = min(room, limits.max_tokens_per_turn)
            cut = await self._sample(builder, episode_id, turn, most, min_version)
            if cut:
                return self._end(builder, conversation, session, Status.TRUNCATED, "max_tokens_per_turn")
            step = await self._step(builder, session, conversation, turn)
            if step.done:
                status = Status.TRUNCATED if step.truncated else Status.FINISHED
                return self._end(
                    builder, conversation, session, status, "environment" if step.truncated else ""
                )
            builder.add_context(self.renderer.observation(step.messages, session.tools), step.observation_id)
            conversation += step.messages
        return self._end(builder, conversation, session, Status.TRUNCATED, "max_turns")

    async def _sample(
        self, builder: TrajectoryBuilder, episode_id: str, turn: int, max_tokens: int, min_version: int
    ) -> bool:
        """Sample one turn; True when it was cut by `max_tokens` before it ended."""
        seed = self.settings.seed
        start = time.monotonic()
        generated = await self.generator.generate(
            GenerateRequest(
                id=f"{episode_id}-{turn}",
                token_ids=builder.token_ids(),
                max_tokens=max_tokens,
                temperature=self.settings.temperature,
                seed=None
                if seed is None
                else sampling_seed(seed, builder.task.id, builder.episode_index, turn),
                stop_token_ids=self.renderer.stop_token_ids,
                session=episode_id,
                min_version=min_version,
            )
        )
        builder.engine_s += time.monotonic() - start
        builder.add_turn(generated)
        return generated.finish_reason == "length"

    async def _step(
        self, builder: TrajectoryBuilder, session: Session, conversation: list[Message], turn: int
    ) -> Step:
        text = self.renderer.text(builder.last_turn())
        action = self.parse(text)
        conversation.append(_assistant_message(action))
        start = time.monotonic()
        step = await session.step(turn, action, self.settings.step_timeout_s)
        builder.env_s += time.monotonic() - start
        builder.add_step(step)
        return step

    def _end(
        self,
        builder: TrajectoryBuilder,
        conversation: list[Message],
        session: Session,
        status: Status,
        why: str,
    ) -> Trajectory:
        info: dict[str, Any] = {}
        if self.settings.check_history:
            matches, forks = self.renderer.compare_history(
                builder.token_ids(),
                conversation,
                len(session.messages),
                builder.sampled_turns(),
                session.tools,
            )
            info = {"history_matches": matches, "history_forks": forks}
        return builder.finish(status, error=why, info=info)

    async def _close(self, session: Session) -> None:
        """Close the session; the episode is already decided, and an unreachable service reaps it itself."""
        try:
            await session.close()
        except (EpisodeError, InfrastructureError, DeadlineError):
            return


def _assistant_message(action: Action) -> Message:
    message: Message = {"role": "assistant", "content": action.content}
    if action.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in action.tool_calls
        ]
    return message
