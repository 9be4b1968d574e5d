"""One episode: open a session, sample a turn, step, append the observation, until it ends.

A bad rollout is data: a failure ends as the status of a `Trajectory`, recorded once. Bugs raise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from asyncrl.agent_time import step_limit_s
from asyncrl.chat.conversation import Conversation, Conversations
from asyncrl.chat.renderer import ChatRenderer, Limits, sampling_seed
from asyncrl.chat.tool_calls import TurnParser
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.config import Config
from asyncrl.data.token_extras.asked import asked_of
from asyncrl.env.protocol import Action, Step
from asyncrl.errors import AgentError, DeadlineError, EpisodeError, InfrastructureError, InputError
from asyncrl.extensions.table import rows
from asyncrl.generation import Generated, GenerateRequest, Generator
from asyncrl.rollout.player import EpisodeRequest
from asyncrl.rollout.turns_ahead import TurnsAhead
from asyncrl.rollout.worker_context import WorkerContext
from asyncrl.tracing import span
from asyncrl.types import FailureClass, Message, Status, Task, Trajectory


class Session(Protocol):
    """An open environment session, wherever it runs."""

    messages: list[Message]
    tools: list[dict[str, Any]]
    max_turns: int
    least_step_s: float
    """See `Env.least_step_s`."""

    async def step(self, step_index: int, action: Action, timeout_s: float) -> Step: ...
    async def close(self) -> None: ...


class EnvOpener(Protocol):
    """Opens sessions: over HTTP or in process."""

    async def open(self, task: Task, config: dict[str, Any]) -> Session: ...


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """What every episode of a worker shares. Times in seconds."""

    limits: Limits
    """`max_turns` 0 takes the environment's own."""
    temperature: float = 1.0
    seed: int | None = None
    """Run seed for repeatable sampling; None lets the engine draw."""
    step_timeout_s: float | None = None
    """None lets each session have what its environment needs."""
    env_config: dict[str, Any] | None = None
    asked: dict[str, Any] = field(default_factory=dict)
    """Fields of every `GenerateRequest` with which a run asks for more than tokens."""
    check_history: bool = False
    """Compare the tokens with fresh renderings of the conversation; note whether they agree and where they fork."""


def episode_settings(config: Config, temperature: float, seed: int | None) -> EpisodeSettings:
    """Return the settings of the episodes of a run."""
    rollout = config.rollout
    return EpisodeSettings(
        limits=Limits(rollout.max_turns, rollout.max_tokens_per_turn, config.max_tokens),
        temperature=temperature,
        seed=seed,
        step_timeout_s=config.env.given_step_s,
        env_config=config.env.config,
        asked=asked_of(config),
        check_history=True,
    )


class EpisodeEnd(Protocol):
    """Has the last word on an episode that did not fail, once its session is closed. Serves many at once."""

    async def apply(
        self, played: Sequence[Trajectory], task: Task, messages: list[Message]
    ) -> tuple[Trajectory, ...]:
        """Return an episode's trajectories, the main agent's first; `messages` are that one's conversation."""
        ...

    async def close(self) -> None: ...


def episode_ends(context: WorkerContext) -> tuple[EpisodeEnd, ...]:
    """Return what has the last word in a run, in order."""
    return tuple(row.load()(context) for row in rows("episode_ends") if row.wanted(context.config))


async def ended(
    ends: Sequence[EpisodeEnd], played: tuple[Trajectory, ...], task: Task, messages: list[Message]
) -> tuple[Trajectory, ...]:
    """Return an episode's trajectories after `ends`, in order, each of which has a word only on one that did not
    fail."""
    for end in ends:
        if played[0].failure is None:
            played = await end.apply(played, task, messages)
    return played


class ChatPlayer:
    """Plays episodes of an environment with a generator, turn by turn. Implements `player.EpisodePlayer`."""

    def __init__(
        self,
        generator: Generator,
        envs: EnvOpener,
        renderer: ChatRenderer,
        parse: TurnParser,
        settings: EpisodeSettings,
        ends: Sequence[EpisodeEnd] = (),
    ) -> None:
        self.generator = generator
        self.envs = envs
        self.renderer = renderer
        self.parse = parse
        self.settings = settings
        self.ends = tuple(ends)

    async def play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        """See `EpisodePlayer`."""
        builder = TrajectoryBuilder(request.task, request.index)
        first, *others = await self._run(builder, request)
        given = request.prefix.info if request.prefix is not None else {}
        if given or request.info:
            first = replace(first, info={**first.info, **given, **request.info})
        return await ended(self.ends, (first, *others), request.task, builder.conversation)

    async def _run(self, builder: TrajectoryBuilder, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        """Play the episode; its session is closed when this returns."""
        try:
            start = time.monotonic()
            with span("open"):
                session = await self.envs.open(request.task, self.settings.env_config or {})
            request.on_open()
            builder.env_s += time.monotonic() - start
        except EpisodeError as error:
            return (builder.finish(Status.FAILED, error.failure, str(error)),)
        try:
            return await self._play(builder, session, request)
        except EpisodeError as error:
            return (builder.finish(Status.FAILED, error.failure, str(error)),)
        except (InputError, DeadlineError) as error:
            text = f"{type(error).__name__}: {error}"
            return (builder.finish(Status.FAILED, FailureClass.INFRASTRUCTURE, text),)
        finally:
            await self._close(session)

    async def _play(
        self,
        builder: TrajectoryBuilder,
        session: Session,
        request: EpisodeRequest,
    ) -> tuple[Trajectory, ...]:
        limits = self.settings.limits
        most = session.max_turns
        max_turns = min(limits.max_turns or most, request.max_turns or most, most)
        main = Conversation(builder, self.renderer, request.opening(session.messages), session.tools)
        conversations = Conversations(main, request.notes)
        async with TurnsAhead(conversations, partial(self._generate, request)) as ahead:
            return await self._take_turns(conversations, session, request, ahead, max_turns)

    async def _take_turns(
        self,
        conversations: Conversations,
        session: Session,
        request: EpisodeRequest,
        ahead: TurnsAhead,
        max_turns: int,
    ) -> tuple[Trajectory, ...]:
        limits, check = self.settings.limits, self.settings.check_history
        given = request.prefix.turns if request.prefix is not None else ()
        for turn in range(max_turns):
            room = limits.max_tokens - conversations.current.builder.num_tokens
            if room < 1:
                conversations.current.drop_observation()
                return conversations.finish(Status.TRUNCATED, "max_tokens", check)
            if turn < len(given):
                conversations.current.builder.add_given_turn(given[turn])
            elif await self._sample(conversations, ahead, turn):
                return conversations.finish(Status.TRUNCATED, "max_tokens_per_turn", check)
            step = await self._step(conversations, session, turn)
            if step.truncated and step.done:
                return conversations.finish(Status.TRUNCATED, "environment", check)
            if step.done:
                return conversations.finish(Status.FINISHED, "", check)
            try:
                conversations.switch_agent(step, request.task, request.index)
            except AgentError as error:
                # The episode ends here. As where an environment ends it, the result is trained on.
                conversations.fail_turn()
                return conversations.finish(Status.FINISHED, str(error), check)
            ahead.start(turn + 2)
        if conversations.current.builder.num_tokens > limits.max_tokens:
            conversations.current.drop_observation()
        return conversations.finish(Status.TRUNCATED, "max_turns", check)

    async def _sample(self, conversations: Conversations, ahead: TurnsAhead, turn: int) -> bool:
        """Sample one turn; True when it was cut by a limit before it ended."""
        builder = conversations.current.builder
        start = time.monotonic()
        generated = await ahead.turn(turn)
        builder.add_turn(generated)
        builder.engine_s += time.monotonic() - start
        if generated.finish_reason != "length":
            return False
        builder.cut_text = self.renderer.text(builder.last_turn())
        return True

    async def _generate(
        self, request: EpisodeRequest, conversation: Conversation, agent: str, turn: int, name: str
    ) -> Generated:
        """Sample the next turn of an agent's conversation."""
        builder, limits = conversation.builder, self.settings.limits
        asked = GenerateRequest(
            id=f"{request.id}-{name}",
            token_ids=builder.token_ids(),
            max_tokens=max(1, min(limits.max_tokens - builder.num_tokens, limits.max_tokens_per_turn)),
            temperature=self.settings.temperature,
            seed=self._seed(builder, turn),
            stop_token_ids=self.renderer.stop_token_ids,
            session=(request.prefix.session if request.prefix is not None else "") or request.id,
            min_version=request.min_version,
            agent=agent,
            order=request.order,
            extras={**self.settings.asked, **builder.asked()},
        )
        with span("generate", turn=turn, tokens=len(asked.token_ids), agent=asked.agent), request.sampling():
            return await (request.generator or self.generator).generate(asked)

    def _seed(self, builder: TrajectoryBuilder, turn: int) -> int | None:
        if self.settings.seed is None:
            return None
        return sampling_seed(self.settings.seed, builder.task.id, builder.episode_index, turn)

    async def _step(self, conversations: Conversations, session: Session, turn: int) -> Step:
        builder = conversations.current.builder
        text = self.renderer.text(builder.last_turn())
        action = self.parse(text, conversations.current.tools)
        conversations.current.append_action(action, text)
        start = time.monotonic()
        with span("step", turn=turn):
            limit_s = step_limit_s(self.settings.step_timeout_s, session.least_step_s)
            step = await session.step(turn, action, limit_s)
        builder.env_s += time.monotonic() - start
        conversations.credit(step)
        return step

    async def _close(self, session: Session) -> None:
        """Close the session. The episode is decided already, and an unreachable service expires the session itself."""
        try:
            await session.close()
        except (EpisodeError, InfrastructureError, DeadlineError):
            return
