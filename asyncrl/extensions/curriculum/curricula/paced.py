"""PACED: tasks in proportion to p^a (1 - p)^b of their expected success rate p.

    weight = p^a (1 - p)^b, largest at p = a / (a + b)

Source: arXiv 2603.11178, from the abstract, which weighs distillation losses by it; here it is the probability of a
task, which has the same expectation. `decay` is ours: the paper estimates pass rates once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum, check_range, proportional_keys
from asyncrl.types import Task


def pace(pass_rate: np.ndarray, a: float, b: float) -> np.ndarray:
    """[N] p^a (1 - p)^b."""
    p = np.asarray(pass_rate, dtype=np.float64)
    return p**a * (1 - p) ** b


class Paced(BeliefCurriculum):
    """See the module. Raises `ValueError` for settings out of range."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        a: float = 1.0,
        b: float = 1.0,
        decay: float = 0.5,
    ) -> None:
        super().__init__(tasks, group_size, seed, decay)
        for name, value in (("a", a), ("b", b)):
            check_range(name, value, 0.0, 100.0)
        self.a, self.b = a, b

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """See `BeliefCurriculum.keys`."""
        return proportional_keys(pace(self.mean, self.a, self.b), rng)
