"""Difficulty by similarity: tasks whose difficulty, judged by similar ones that were probed, is near a target.

    d_i = sum_j softmax_j(q_i k_j / (sqrt(D) tau_attention)) d_j     over K reference tasks, d_j = 1 - newest success
    P(task) ~ exp(-|d_i - target| / tau)

Source: difficulty-targeted online data selection, arXiv 2506.05316 (256 reference tasks, target 0.5, tau 1e-3). The
paper's embeddings go through a trained head; here they are `embed`'s, without a head, so `tau_attention` must suit
their scale, and the prediction is not calibrated. The reference tasks are a random K of the pool. The first K
proposals probe them, and later every `probe_every`-th probes the next of them again. Probes are trained on, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from asyncrl.extensions.curriculum import difficulty
from asyncrl.extensions.curriculum.curriculum import (
    Curriculum,
    Outcome,
    Proposal,
    check_range,
    largest,
    proportional_keys,
)
from asyncrl.extensions.curriculum.embedding import embed
from asyncrl.types import Task

UNKNOWN = 0.5
"""Difficulty of a reference task before its first outcome."""


class Similarity(Curriculum):
    """See the module. Raises `ValueError` for settings out of range, `InputError` for tasks that cannot be compared."""

    def __init__(
        self,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        *,
        references: int = 64,
        target: float = 0.5,
        tau: float = 0.05,
        tau_attention: float = 0.02,
        probe_every: int = 4,
    ) -> None:
        super().__init__(tasks, group_size, seed)
        check_range("references", references, 1, 100_000)
        check_range("target", target, 0.0, 1.0)
        check_range("tau", tau, 1e-6, 1e6)
        check_range("tau_attention", tau_attention, 1e-6, 1e6)
        check_range("probe_every", probe_every, 2, 1_000_000)
        self.target, self.tau, self.probe_every = target, tau, probe_every
        self.tau_attention = tau_attention
        self.references = self.rng(0).permutation(len(tasks))[:references]
        self.vectors = embed(tasks)
        self.attention = self.attend()
        """[N, K] weights of the reference tasks."""
        self.known = np.full(len(self.references), UNKNOWN)
        """[K] difficulties of the reference tasks."""

    def attend(self) -> np.ndarray:
        """[N, K] attention of each task to the reference tasks."""
        keys = self.vectors[self.references]
        return np.array([difficulty.attention_weights(q, keys, self.tau_attention) for q in self.vectors])

    @property
    def predicted(self) -> np.ndarray:
        """[N] difficulty of each task."""
        return self.attention @ self.known

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`; a reference task is probed even when it is busy."""
        rng, hard = self.rng(number), self.predicted
        size = len(self.references)
        probes = [self._probe(n) for n in range(number, number + count)]
        probed = [int(self.references[i % size]) for i in probes if i is not None]
        weights = difficulty.targeted_probabilities(hard, self.target, self.tau)
        rest = count - len(probed)
        chosen = largest(proportional_keys(weights, rng), rest, {*busy, *probed}, rng) if rest else []
        return [Proposal(place, self.group_size, float(1 - hard[place])) for place in probed + chosen]

    def _probe(self, number: int) -> int | None:
        """Return which probe a proposal is, None where it is none."""
        later = number - len(self.references)
        if later < 0:
            return number
        return None if later % self.probe_every else later // self.probe_every

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Take the newest success of each reference task as its difficulty."""
        index = {int(place): i for i, place in enumerate(self.references)}
        for outcome in outcomes:
            if outcome.place in index and outcome.successes:
                self.known[index[outcome.place]] = 1 - outcome.success

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return {"known": self.known.tolist()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        self.known = np.array(state["known"])
