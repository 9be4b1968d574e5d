"""GDRO's prompt bandit: difficulty bins in proportion to an exponential weight of their loss, tasks evenly inside.

    bin of a task: floor(10 mean belief), kept until the mean is `hysteresis` outside it
    S_b <- (1 - ema) S_b + ema (mean loss of the bin's tasks that were played),  loss = 1 - success
    q_b = (1 - gamma) exp(eta clip(S_b, +-2)) / sum + gamma / B     over the bins that hold tasks

Source: Prompt-GDRO, arXiv 2601.19280. Where the paper takes the loss of GRPO, this takes the failure rate, which is
known before training. Means over a bin, not sums, keep frequent bins from weighing more. With
`rollouts = "sqrt"` a bin's groups have n_b ~ sqrt(v_b) episodes, v_b = mean of p (1 - p), scaled to `group_size` on
average over q and kept from `min_rollouts` to `max_rollouts` (Rollout-GDRO's variance-optimal rule).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from asyncrl.extensions.curriculum import gdro
from asyncrl.extensions.curriculum.curriculum import (
    BeliefCurriculum,
    Outcome,
    Proposal,
    check_range,
    proportional_keys,
)
from asyncrl.types import Task

BINS = 10


class GDRO(BeliefCurriculum):
    """See the module; `max_rollouts` 0 is twice the group size. Raises `ValueError` for settings out of range."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        ema: float = 0.1,
        eta: float = 1.0,
        gamma: float = 0.1,
        hysteresis: float = 0.02,
        decay: float = 0.5,
        rollouts: Literal["fixed", "sqrt"] = "fixed",
        min_rollouts: int = 2,
        max_rollouts: int = 0,
    ) -> None:
        super().__init__(tasks, group_size, seed, decay)
        for name, value in (("ema", ema), ("gamma", gamma)):
            check_range(name, value, 0.0, 1.0)
        check_range("eta", eta, 0.0, 100.0)
        check_range("hysteresis", hysteresis, 0.0, 1.0)
        most = max_rollouts or 2 * group_size
        if rollouts == "sqrt":
            check_range("min_rollouts", min_rollouts, 1, group_size)
            check_range("max_rollouts", most, group_size, 1024)
        self.ema, self.eta, self.gamma, self.hysteresis = ema, eta, gamma, hysteresis
        self.rollouts, self.min_rollouts, self.max_rollouts = rollouts, min_rollouts, most
        self.scores = np.zeros(BINS)
        self.bins = np.full(len(tasks), BINS // 2)

    def bin_probabilities(self) -> np.ndarray:
        """[B] q, 0 for bins without tasks."""
        sizes = np.bincount(self.bins, minlength=BINS)
        q = np.zeros(BINS)
        filled = sizes > 0
        q[filled] = gdro.bin_probabilities(gdro.bin_weights(self.scores[filled], self.eta), self.gamma)
        return q

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """See `BeliefCurriculum.keys`."""
        sizes = np.bincount(self.bins, minlength=BINS)
        return proportional_keys((self.bin_probabilities() / np.maximum(sizes, 1))[self.bins], rng)

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`."""
        chosen = super().propose(count, number, busy)
        if self.rollouts == "fixed":
            return chosen
        sizes = self.bin_rollouts()
        return [Proposal(p.place, int(sizes[self.bins[p.place]]), p.predicted) for p in chosen]

    def bin_rollouts(self) -> np.ndarray:
        """[B] episodes of a group of each bin by the square-root rule, whole numbers within the limits."""
        sizes = np.maximum(np.bincount(self.bins, minlength=BINS), 1)
        variance = np.bincount(self.bins, self.mean * (1 - self.mean), BINS) / sizes
        if not variance.any():
            return np.full(BINS, self.group_size)
        wanted = gdro.sqrt_law(self.bin_probabilities(), variance, self.group_size)
        return np.clip(np.floor(wanted + 0.5), self.min_rollouts, self.max_rollouts).astype(int)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Update beliefs, the scores of the bins that were played, and the bins of their tasks."""
        losses: dict[int, list[float]] = {}
        for outcome in outcomes:
            if outcome.successes:
                losses.setdefault(int(self.bins[outcome.place]), []).append(1 - outcome.success)
        for played, values in losses.items():
            self.scores[played] = gdro.update_scores(
                self.scores[played], np.asarray(np.mean(values)), self.ema
            )
        super().observe(outcomes)
        for place in {outcome.place for outcome in outcomes}:
            rate = self.mean[place]
            low, high = self.bins[place] / BINS, (self.bins[place] + 1) / BINS
            if not low - self.hysteresis <= rate <= high + self.hysteresis:
                self.bins[place] = min(int(rate * BINS), BINS - 1)

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return super().state() | {"scores": self.scores.tolist(), "bins": self.bins.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        super().load_state(state)
        self.scores, self.bins = np.array(state["scores"]), np.array(state["bins"])
