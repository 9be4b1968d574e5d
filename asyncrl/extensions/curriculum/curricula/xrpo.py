"""XRPO: tasks drawn evenly, and more rollouts for those whose success rate a further rollout would tell the most about.

    h(n) = t(0.975; n - 1) s / sqrt(n)                      half-width of the confidence interval after n rollouts
    priority = h(n) - h(n + 1) + explore sqrt(log(1 + T) / n)      T: rollouts of all tasks proposed together

Every task gets `min_rollouts`. The rest, up to `group_size` on average, go one by one to the task of the largest
priority, none above `max_rollouts`.

Source: XRPO, arXiv 2510.06672, whose allocator gives the rollouts of one batch in rounds. Here all are given at once,
from earlier groups: n starts at the evidence of the task's belief, and s^2 = p (1 - p) of its mean, so that a task that
has failed always is not taken for certain. With `seeds`, tasks that fail are seeded with that many examples
(`asyncrl.extensions.curriculum.seeding`). Its novelty term is not part of this.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum, Outcome, Proposal, check_range
from asyncrl.extensions.curriculum.seeding import Seeding
from asyncrl.types import Task

CONFIDENCE = 0.975
"""Quantile of a two-sided interval of 95 %."""
MAX_SEEDS = 8
"""Examples that a prompt may show."""


class XRPO(BeliefCurriculum):
    """See the module; `max_rollouts` 0 is twice the group size. Raises `ValueError` for settings out of range."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        explore: float = 0.1,
        decay: float = 0.5,
        min_rollouts: int = 2,
        max_rollouts: int = 0,
        seeds: int = 0,
    ) -> None:
        super().__init__(tasks, group_size, seed, decay)
        check_range("explore", explore, 0.0, 1e6)
        check_range("min_rollouts", min_rollouts, 2, group_size)
        most = max_rollouts or 2 * group_size
        check_range("max_rollouts", most, group_size, 1024)
        check_range("seeds", seeds, 0, MAX_SEEDS)
        self.explore, self.min_rollouts, self.max_rollouts = explore, min_rollouts, most
        self.seeding = Seeding(tasks, seeds) if seeds else None
        self.keeps_examples = seeds > 0

    def keys(self, rng: np.random.Generator) -> np.ndarray:
        """See `BeliefCurriculum.keys`; all are equal."""
        return np.zeros(len(self.tasks))

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`."""
        chosen = super().propose(count, number, busy)
        places = [proposal.place for proposal in chosen]
        evidence = (self.alpha + self.beta - 2)[places]
        rollouts = allocate(
            self.mean[places],
            evidence,
            self.group_size * count,
            (self.min_rollouts, self.max_rollouts),
            self.explore,
        )
        examples = [self.seeding.examples(place) if self.seeding else () for place in places]
        return [
            Proposal(one.place, count, one.predicted, examples=shown)
            for one, count, shown in zip(chosen, rollouts, examples, strict=True)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """See `Curriculum.observe`."""
        super().observe(outcomes)
        if self.seeding is not None:
            self.seeding.observe(outcomes)

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return super().state() | ({"seeding": self.seeding.state()} if self.seeding is not None else {})

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        super().load_state(state)
        if self.seeding is not None:
            self.seeding.load_state(state["seeding"])


def allocate(
    mean: np.ndarray, evidence: np.ndarray, budget: int, limits: tuple[int, int], explore: float
) -> list[int]:
    """Return rollouts [N] that sum to `budget`, where `limits`, the least and the most of a task, allow it.

    mean: [N] expected success rates. evidence: [N] earlier rollouts that they rest on.
    """
    least, most = limits
    given = np.full(len(mean), least)
    for _ in range(budget - least * len(mean)):
        open_ = given < most
        if not open_.any():
            break
        priority = np.where(open_, priorities(mean, evidence + given, explore), -np.inf)
        given[int(priority.argmax())] += 1
    return given.tolist()


def priorities(mean: np.ndarray, rollouts: np.ndarray, explore: float) -> np.ndarray:
    """[N] worth of one more rollout after `rollouts` >= 2 of each task."""
    spread = np.sqrt(mean * (1 - mean))
    gain = half_width(spread, rollouts) - half_width(spread, rollouts + 1)
    return gain + explore * np.sqrt(np.log1p(rollouts.sum()) / rollouts)


def half_width(spread: np.ndarray, rollouts: np.ndarray) -> np.ndarray:
    """[N] half-width of the confidence interval of a mean."""
    return stdtrit(rollouts - 1, CONFIDENCE) * spread / np.sqrt(rollouts)
