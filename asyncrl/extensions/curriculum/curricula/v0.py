"""V0: a value model at state zero, which predicts a task's success from the outcomes of similar ones.

    alpha_i = 1 + sum_h w_ih successes_h,  beta_i = 1 + sum_h w_ih failures_h     over the newest `history` outcomes
    w_ih = exp(-|x_i - x_h|^2 / (2 width^2)) decay^(versions since h),  p_i = alpha_i / (alpha_i + beta_i)
    key = sqrt(p_i (1 - p_i)) + explore sd_i,  sd of Beta(alpha_i, beta_i)

Source: V0, arXiv 2602.03584: the policy's capability is a context of task-performance pairs, from which the success on
any task is inferred before a rollout, without training a critic. The paper infers with a pretrained tabular transformer
(TabPFN) over learned embeddings; here the inference is kernel-weighted counting over `embed`'s. How tasks are
chosen by the prediction is ours: the paper gives rollouts to prompts by it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from asyncrl.extensions.curriculum.curriculum import Curriculum, Outcome, Proposal, check_range, largest
from asyncrl.extensions.curriculum.embedding import embed
from asyncrl.types import Task


class V0(Curriculum):
    """See the module. Raises `ValueError` for settings out of range, `InputError` for tasks that cannot be compared."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        history: int = 512,
        width: float = 0.2,
        decay: float = 0.8,
        explore: float = 0.5,
    ) -> None:
        super().__init__(tasks, group_size, seed)
        check_range("history", history, 1, 100_000)
        check_range("width", width, 1e-6, 1e6)
        check_range("decay", decay, 0.0, 1.0)
        check_range("explore", explore, 0.0, 1e6)
        self.history, self.width, self.decay, self.explore = history, width, decay, explore
        self.vectors = embed(tasks)
        self.age = 0
        """Versions observed so far."""
        self.newest: list[list[float]] = []
        """The newest outcomes: place, successes, failures, and the age they were observed at."""

    def belief(self) -> tuple[np.ndarray, np.ndarray]:
        """Return alpha and beta [N]."""
        ones = np.ones(len(self.tasks))
        if not self.newest:
            return ones, ones
        places, successes, failures, ages = np.array(self.newest).T
        # Vectors have length 1: the squared distance is 2 - 2 x y.
        squared = 2 - 2 * self.vectors @ self.vectors[places.astype(int)].T
        weights = np.exp(-squared / (2 * self.width**2)) * self.decay ** (self.age - ages)
        return ones + weights @ successes, ones + weights @ failures

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`."""
        alpha, beta = self.belief()
        p = alpha / (alpha + beta)
        variance = p * (1 - p)
        keys = np.sqrt(variance) + self.explore * np.sqrt(variance / (alpha + beta + 1))
        chosen = largest(keys, count, busy, self.rng(number))
        return [Proposal(place, self.group_size, float(p[place])) for place in chosen]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Add the outcomes to the history."""
        self.age += 1
        for outcome in outcomes:
            successes = float(sum(outcome.successes))
            self.newest.append(
                [float(outcome.place), successes, len(outcome.successes) - successes, float(self.age)]
            )
        self.newest = self.newest[-self.history :]

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return {"age": self.age, "newest": self.newest}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        self.age, self.newest = state["age"], [list(row) for row in state["newest"]]
