"""Rewards that somebody else gives: what a judge is asked and what its answer does to an episode.

The session is closed and no request waits on the engine while the judge thinks, so judging overlaps with everything
else. A judge that fails says nothing about the policy: the episode fails with a class of its own, never with reward 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from asyncrl.errors import JudgeError
from asyncrl.types import Message, Status, Task, Trajectory

COMPONENT = "judge"


@dataclass(frozen=True, slots=True)
class JudgeRequest:
    """One finished episode."""

    task: Task
    messages: tuple[Message, ...]
    """The whole conversation as the environment and the policy had it."""
    reward: float
    """What the environment gave."""


class Judge(Protocol):
    """Scores conversations. Safe to call from many episodes at once."""

    async def score(self, request: JudgeRequest) -> float:
        """Return the reward. Raises `JudgeError`."""
        ...


@dataclass(frozen=True, slots=True)
class Judging:
    """A judge and how its score enters the reward: `replace` it, or `add` to it, `weight` times the score."""

    judge: Judge
    mode: Literal["replace", "add"] = "replace"
    weight: float = 1.0

    async def apply(self, trajectory: Trajectory, task: Task, messages: list[Message]) -> Trajectory:
        """Return the trajectory with its judged reward, or failed when there is no judgement."""
        try:
            score = await self.judge.score(JudgeRequest(task, tuple(messages), trajectory.reward))
        except JudgeError as error:
            return replace(
                trajectory, status=Status.FAILED, failure=error.failure, error=str(error)[:2000], success=None
            )
        return with_score(trajectory, self.weight * score, self.mode)


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
