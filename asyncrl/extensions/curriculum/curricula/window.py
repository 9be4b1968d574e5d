"""Difficulty window: tasks whose expected success rate lies between `low` and `high`, each equally likely.

The rule of online difficulty filtering (arXiv 2504.03380) and of DAPO's dynamic sampling, applied before the rollouts
instead of after them. `explore` is the share of proposals drawn from the whole pool: tasks that left the window are
looked at again as the policy changes. Unseen tasks have the belief 0.5 and so lie in any window around it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum, check_range, proportional_keys
from asyncrl.types import Task


class DifficultyWindow(BeliefCurriculum):
    """See the module. Raises `ValueError` for settings out of range."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        low: float = 0.2,
        high: float = 0.8,
        explore: float = 0.1,
        decay: float = 0.5,
    ) -> None:
        super().__init__(tasks, group_size, seed, decay)
        check_range("high", high, 0.0, 1.0)
        check_range("low", low, 0.0, high)
        check_range("explore", explore, 0.0, 1.0)
        self.low, self.high, self.explore = low, high, explore

    def weights(self) -> np.ndarray:
        """[N] probability of each task."""
        inside = ((self.mean >= self.low) & (self.mean <= self.high)).astype(float)
        uniform = np.full(len(self.tasks), 1 / len(self.tasks))
        return (
            self.explore * uniform + (1 - self.explore) * inside / inside.sum() if inside.any() else uniform
        )

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """See `BeliefCurriculum.keys`."""
        return proportional_keys(self.weights(), rng)
