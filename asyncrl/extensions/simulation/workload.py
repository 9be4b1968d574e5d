"""What episodes are like: turns, tokens, and how long tools take."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from asyncrl.types import Task

NEAREST = 16
"""Recorded groups among which one is drawn."""


@dataclass(frozen=True, slots=True)
class TurnShape:
    """One turn of an episode."""

    observed_tokens: int
    """Prompt or observation that precedes it."""
    sampled_tokens: int
    tool_s: float
    """How long the environment takes for its action."""


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """One episode."""

    turns: tuple[TurnShape, ...]
    reward: float
    trained_tokens: int | None = None
    """Tokens that the trainer computes for it; None: all of its context."""

    @property
    def context_tokens(self) -> int:
        """Tokens that it has at its end."""
        return sum(turn.observed_tokens + turn.sampled_tokens for turn in self.turns)


class Workload(Protocol):
    """Tells what each episode of each task will be like."""

    def group(self, task: Task, size: int, progress: float = 0.0) -> Sequence[EpisodeShape]:
        """Return the task's `size` episodes; the same ones whenever it is asked with the same progress.

        progress: of the policy that plays them, as the number of episodes that it was trained on.
        """
        ...


@dataclass(frozen=True, slots=True)
class DrawnWorkload:
    """Log-normal lengths and latencies."""

    turns: int
    prompt_tokens: int
    sampled_tokens: float
    """Median of a turn."""
    max_sampled_tokens: int
    observed_tokens: int = 0
    """After the first turn."""
    sampled_sigma: float = 0.8
    """Standard deviation of the logarithm: 0.8 makes the longest of a hundred answers six times the median."""
    tool_s: float = 0.0
    """Median."""
    tool_sigma: float = 1.0
    no_signal: float = 0.0
    """Share of groups whose episodes all earn the same."""
    seed: int = 0

    def group(self, task: Task, size: int, progress: float = 0.0) -> Sequence[EpisodeShape]:
        draw = random.Random(f"{self.seed}/{task.id}")
        signal = draw.random() >= self.no_signal
        return [self._episode(draw, float(signal and index == 0)) for index in range(size)]

    def _episode(self, draw: random.Random, reward: float) -> EpisodeShape:
        turns = []
        for number in range(self.turns):
            sampled = draw.lognormvariate(math.log(self.sampled_tokens), self.sampled_sigma)
            tool_s = draw.lognormvariate(math.log(self.tool_s), self.tool_sigma) if self.tool_s else 0.0
            turns.append(
                TurnShape(
                    observed_tokens=self.observed_tokens if number else self.prompt_tokens,
                    sampled_tokens=max(1, min(self.max_sampled_tokens, round(sampled))),
                    tool_s=tool_s,
                )
            )
        return EpisodeShape(tuple(turns), reward)


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """Groups that a run played, drawn with replacement, so that lengths within a group stay alike. Those are drawn that
    the run played when its policy was trained on about as many episodes: episodes change as the policy learns."""

    groups: Sequence[Sequence[EpisodeShape]]
    progress: Sequence[float] = ()
    """The progress of the policy that played each group, ascending; empty: any group is drawn at any time."""
    no_signal: float = 0.0
    """Share of groups that the run dropped since their episodes all earned the same; their lengths are those of the
    recorded ones."""
    seed: int = 0

    def group(self, task: Task, size: int, progress: float = 0.0) -> Sequence[EpisodeShape]:
        draw = random.Random(f"{self.seed}/{task.id}")
        signal = draw.random() >= self.no_signal
        found = self.groups[draw.choice(self._near(progress))]
        return [
            replace(found[index % len(found)], reward=float(signal and index == 0)) for index in range(size)
        ]

    def _near(self, progress: float) -> range:
        """The groups that were played after about as many trained episodes."""
        if not self.progress:
            return range(len(self.groups))
        middle = (bisect_left(self.progress, progress) + bisect_right(self.progress, progress)) // 2
        first = max(0, min(middle - NEAREST // 2, len(self.groups) - NEAREST))
        return range(first, min(first + NEAREST, len(self.groups)))
