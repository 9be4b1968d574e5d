"""Playing one episode: what is asked of a player, and the attempts that an episode gets.

    request --> attempt 1, 2, ... , each: player.play, within the episode's time limit --> trajectories

`rollout.episode.ChatPlayer` samples the turns itself; other players have programs of others take them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from asyncrl.chat.conversation import Note
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.errors import AsyncRLError
from asyncrl.generation import Generator
from asyncrl.tracing import span
from asyncrl.types import FailureClass, Message, Status, Task, Trajectory

MAX_ATTEMPTS = {FailureClass.INFRASTRUCTURE: 3, FailureClass.ENVIRONMENT: 2}
"""Attempts at an episode that fails in this way, each in a fresh session; other classes get one."""
RETRY_PAUSE_S = 0.5


def _ignore() -> None:
    """Do nothing when the session opens."""


def _unchanged(messages: list[Message]) -> list[Message]:
    """Return an episode's opening messages as the environment gave them."""
    return messages


@dataclass(frozen=True, slots=True)
class GivenPrefix:
    """The first turns of an episode that the policy does not sample. They are played, seen and never trained."""

    turns: tuple[np.ndarray, ...]
    """Token ids of each turn, [N] int32, with the token that ends it."""
    info: dict[str, Any] = field(default_factory=dict)
    """Goes into the trajectory's `info`."""
    session: str = ""
    """Session whose prefix the engine may still hold; "" for the episode's own."""


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """One episode to play."""

    task: Task
    index: int
    """Place in its group."""
    id: str
    """Unique among running episodes."""
    min_version: int = 0
    """The oldest policy version that may sample; engines with older weights are passed over."""
    order: int = 0
    """Place among the requests that wait for an engine, lower ones first."""
    prefix: GivenPrefix | None = None
    """First turns that are given, not sampled, by a player that samples the turns itself."""
    max_turns: int = 0
    """Turns of the episode, where fewer than the player allows; 0 for as many as it allows."""
    opening: Callable[[list[Message]], list[Message]] = _unchanged
    """Returns the opening messages that the policy reads, from those of the environment."""
    info: dict[str, Any] = field(default_factory=dict)
    """Goes into the `info` of the main agent's trajectory."""
    generator: Generator | None = None
    """Samples the turns; None for the player's own. Read by a player that samples the turns itself."""
    notes: tuple[Note, ...] = ()
    """What is noted on each trajectory at the episode's end."""
    timeout_s: float = 3600.0
    """Seconds the episode may take once its session is open, without those in which its turns are sampled; the caller
    cancels it then."""
    on_open: Callable[[], None] = _ignore
    """Called once the session is open: waiting for it does not count as time of the episode."""
    sampling: Callable[[], AbstractContextManager[None]] = nullcontext
    """Open while a turn is sampled, which does not count either: engines have a limit of their own, and are slow where
    many episodes share them."""


class EpisodePlayer(Protocol):
    """Plays episodes, many at once."""

    async def play(self, request: EpisodeRequest) -> tuple[Trajectory, ...]:
        """Play one episode.

        Returns the main agent's trajectory, followed by the others that it has; all have the request's index as
        `episode_index`. A bad rollout is data: a failed episode is one trajectory that says why.
        """
        ...


async def play_with_retries(player: EpisodePlayer, request: EpisodeRequest) -> tuple[Trajectory, ...]:
    """Play an episode within its time limit; again from its start if the environment or infrastructure failed it.

    The last attempt stands. `info["attempts"]` counts the attempts where there were several.
    """
    played: tuple[Trajectory, ...]
    for attempt in itertools.count(1):
        try:
            # The limit starts with the session: waiting for one has a deadline of its own.
            async with asyncio.timeout(None) as clock:
                time = _Time(clock, request.timeout_s)
                own = replace(
                    request,
                    id=attempt_id(request.id, attempt),
                    on_open=time.start,
                    sampling=time.stopped,
                )
                with span("episode", index=request.index, attempt=attempt):
                    played = await player.play(own)
        except TimeoutError:
            error = f"episode did not end within rollout.episode_timeout_s={request.timeout_s:g}"
            played = (failed_episode(request.task, request.index, FailureClass.INFRASTRUCTURE, error),)
        failure = played[0].failure
        if failure is None or attempt >= MAX_ATTEMPTS.get(failure, 1):
            break
        await asyncio.sleep(RETRY_PAUSE_S * attempt)
    if attempt == 1:
        return played
    return tuple(replace(t, info={**t.info, "attempts": attempt}) for t in played)


def attempt_id(episode_id: str, attempt: int) -> str:
    """Return the id under which an attempt at an episode is played, 1 being the first."""
    return f"{episode_id}-{attempt}"


def failed_by(request: EpisodeRequest, error: AsyncRLError) -> tuple[Trajectory, ...]:
    """Return an episode that infrastructure failed before it had any trajectory."""
    text = f"{type(error).__name__}: {error}"
    return (failed_episode(request.task, request.index, FailureClass.INFRASTRUCTURE, text),)


def failed_episode(task: Task, index: int, failure: FailureClass, error: str) -> Trajectory:
    """Return the trajectory of an episode that failed before it had any."""
    return TrajectoryBuilder(task, index).finish(Status.FAILED, failure, error)


class _Time:
    """The time of an episode: it begins with the session, and stands still while any turn is sampled."""

    def __init__(self, clock: asyncio.Timeout, limit_s: float) -> None:
        self._clock, self._left_s = clock, limit_s
        self._sampled = 0
        """Turns that are being sampled, of which an episode may have several at once."""
        self._runs = False

    def start(self) -> None:
        self._runs = True
        self._set()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        if self._sampled == 0 and (end := self._clock.when()) is not None:
            self._left_s = end - asyncio.get_running_loop().time()
        self._sampled += 1
        self._set()
        try:
            yield
        finally:
            self._sampled -= 1
            self._set()

    def _set(self) -> None:
        # Once it has ended the episode, there is nothing to be set.
        if not self._runs or self._clock.expired():
            return
        if self._sampled:
            self._clock.reschedule(None)
        elif self._clock.when() is None:
            self._clock.reschedule(asyncio.get_running_loop().time() + self._left_s)
