"""Rewards of a judge: what it is asked, and what its answer does to an episode.

The session is closed and no request waits on the engine while the judge works, so judging overlaps with everything
else. A judge that fails says nothing about the policy: the episode fails with a class of its own, never with reward 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from asyncrl.config import Config
from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.settings import JudgeConfig
from asyncrl.types import Message, Status, Task, Trajectory

COMPONENT = "judge"
KEY = "ASYNCRL_JUDGE_KEY"
"""Environment variable with the bearer key of `judge.url`."""


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One finished episode."""

    task: Task
    messages: tuple[Message, ...]
    """The whole conversation between environment and policy."""
    reward: float
    """The environment's reward."""


class Judge(Protocol):
    """Scores conversations. Safe to call from many episodes at once."""

    async def score(self, request: JudgeRequest) -> float:
        """Return the reward. Raises `JudgeError`."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge and how its score enters the reward: `replace` it, or `add` to it, `weight` times the score.

    Implements `episode.EpisodeEnd`.
    """

    judge: Judge
    mode: Literal["replace", "add"] = "replace"
    weight: float = 1.0

    async def close(self) -> None:
        """See `EpisodeEnd`."""
        await self.judge.close()

    async def apply(
        self, played: Sequence[Trajectory], task: Task, messages: list[Message]
    ) -> tuple[Trajectory, ...]:
        """Return an episode's trajectories with their judged rewards; the main agent's is the first.

        The judge reads the main agent's conversation. Every agent that has taken a turn gets the score, since they
        share the task. Without a score the episode fails, and only the main agent's trajectory is returned.
        """
        first, start = played[0], time.monotonic()
        try:
            score = await self.judge.score(JudgeRequest(task, tuple(messages), first.reward))
        except JudgeError as error:
            why = str(error)[:2000]
            failed = replace(first, status=Status.FAILED, failure=error.failure, error=why, success=None)
            return (_timed(failed, start),)
        first, *others = (with_score(one, self.weight * score, self.mode) for one in played)
        return _timed(first, start), *others


def _timed(trajectory: Trajectory, start: float) -> Trajectory:
    """Return the trajectory with the seconds since `start` as the judge's."""
    return replace(trajectory, timing={**trajectory.timing, "judge_s": time.monotonic() - start})


def with_score(trajectory: Trajectory, score: float, mode: Literal["replace", "add"]) -> Trajectory:
    """Return the trajectory with `score` in its reward: credited to its last turn, kept as the component "judge".

    `replace` takes the environment's rewards from all turns.
    """
    turns = trajectory.turns
    if mode == "replace":
        turns = tuple(replace(turn, reward=0.0) for turn in turns)
    if turns:
        turns = (*turns[:-1], replace(turns[-1], reward=turns[-1].reward + score))
    reward = score if mode == "replace" else trajectory.reward + score
    return replace(
        trajectory, turns=turns, reward=reward, components={**trajectory.components, COMPONENT: score}
    )


def judging(config: Config) -> Judging:
    """Return the judge of a run with `judge.url`."""
    from asyncrl.extensions.judge.client import JudgeClient

    given = config.section(JudgeConfig)
    return Judging(JudgeClient(given, os.environ.get(KEY, "")), given.mode, given.weight)
