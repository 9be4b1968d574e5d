"""VADE: the tasks of which a Thompson sample promises the most information, under beliefs that fade on two scales.

    p~ from Beta(alpha, beta),  key = p~ (1 - p~)^2
    each version:      alpha <- 1 + slow (alpha - 1),              beta alike    all tasks
    each observation:  alpha <- 1 + fast (alpha - 1) + successes,  beta alike    the task observed

Source: VADE, arXiv 2511.18902, from its abstract: Beta posteriors, a Thompson sampler that maximises information gain,
and a prior decay on two scales. The gain p (1 - p)^2 is from a secondary source, and the two decays, to the prior for
what was not played and of old evidence for what was, are our reading.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.extensions.curriculum import beta
from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum, Outcome, check_range
from asyncrl.types import Task


class VADE(BeliefCurriculum):
    """See the module. Raises `ValueError` for settings out of range."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        fast: float = 0.5,
        slow: float = 0.98,
    ) -> None:
        check_range("fast", fast, 0.0, 1.0)
        check_range("slow", slow, 0.0, 1.0)
        super().__init__(tasks, group_size, seed, fast)
        self.slow = slow

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """See `BeliefCurriculum.keys`."""
        return beta.thompson_scores(self.alpha, self.beta, rng)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Let every belief fade to the prior, then update those about tasks that were played."""
        self.alpha, self.beta = beta.fade(self.alpha, self.slow), beta.fade(self.beta, self.slow)
        super().observe(outcomes)
