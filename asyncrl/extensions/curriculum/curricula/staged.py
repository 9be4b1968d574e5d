"""Staged: the environment's levels one after the other, as the policy masters them.

    a stage holds the tasks of its level and, with probability `review`, those of the levels below
    next stage when the success rate of the newest `window` groups of the level reaches `threshold`

A task's level is `task.data["level"]`, a whole number. The oldest form of curriculum learning (Bengio et al. 2009).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from asyncrl.errors import InputError
from asyncrl.extensions.curriculum.curriculum import Curriculum, Outcome, Proposal, check_range, largest
from asyncrl.types import Task


class Staged(Curriculum):
    """See the module. Raises `ValueError` for settings out of range, `InputError` for a task without a level."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        threshold: float = 0.7,
        window: int = 16,
        review: float = 0.2,
    ) -> None:
        super().__init__(tasks, group_size, seed)
        check_range("threshold", threshold, 0.0, 1.0)
        check_range("review", review, 0.0, 1.0)
        check_range("window", window, 1, 10_000)
        self.threshold, self.window, self.review = threshold, window, review
        self.level_of = np.array([level_of(task) for task in tasks])
        self.levels = sorted(set(self.level_of.tolist()))
        self.stage = 0
        self.newest: list[float] = []
        """Success rates of the newest groups of the stage's level."""

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`."""
        rng = self.rng(number)
        at, below = self._tasks(self.stage), self._tasks(*range(self.stage))
        predicted = float(np.mean(self.newest)) if self.newest else None
        reviewed = int(np.sum(rng.random(count) < self.review)) if below else 0
        chosen = []
        for places, wanted, expected in ((below, reviewed, None), (at, count - reviewed, predicted)):
            among = [i for i, place in enumerate(places) if place in busy]
            drawn = largest(np.zeros(len(places)), wanted, among, rng) if wanted else []
            chosen += [Proposal(places[i], self.group_size, expected) for i in drawn]
        return chosen

    def _tasks(self, *stages: int) -> list[int]:
        levels = [self.levels[stage] for stage in stages]
        return np.flatnonzero(np.isin(self.level_of, levels)).tolist()

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Note the successes of the stage's level, and go on to the next where they suffice."""
        level = self.levels[self.stage]
        self.newest += [o.success for o in outcomes if o.successes and self.level_of[o.place] == level]
        self.newest = self.newest[-self.window :]
        mastered = len(self.newest) == self.window and np.mean(self.newest) >= self.threshold
        if mastered and self.stage + 1 < len(self.levels):
            self.stage += 1
            self.newest = []

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return {"stage": self.stage, "newest": self.newest}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        self.stage, self.newest = state["stage"], list(state["newest"])


def level_of(task: Task) -> int:
    """Return a task's level. Raises `InputError` where it has none."""
    level = task.data.get("level")
    if not isinstance(level, int) or isinstance(level, bool):
        raise InputError(
            f"task {task.id!r}: curriculum 'staged' needs a whole number data['level'], got {level!r}"
        )
    return level
