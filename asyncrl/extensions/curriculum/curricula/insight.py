"""InSight: the tasks whose rollouts reveal the most about their success rate, weighted by its expected difficulty.

    key = w(m) I,   m = alpha / (alpha + beta),   w(m) = exp(-eta (m - mu)^2)
    I = mutual information, in nats, of the outcomes of a group's M rollouts and the success rate

Source: InSight, arXiv 2603.01907: weighted mutual information under the mean belief instead of a sampled one. The
exact form of w was not available; the bell around `mu` is ours, and so is `decay` (1 in the paper).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from asyncrl.extensions.curriculum import beta
from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum, check_range
from asyncrl.types import Task


class InSight(BeliefCurriculum):
    """See the module. Raises `ValueError` for settings out of range."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        mu: float = 0.5,
        eta: float = 4.0,
        decay: float = 0.5,
    ) -> None:
        super().__init__(tasks, group_size, seed, decay)
        check_range("mu", mu, 0.0, 1.0)
        check_range("eta", eta, 0.0, 1000.0)
        self.mu, self.eta = mu, eta

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """See `BeliefCurriculum.keys`; nothing is sampled."""
        information = beta.mutual_information(self.alpha, self.beta, self.group_size)
        return np.exp(-self.eta * (self.mean - self.mu) ** 2) * information
