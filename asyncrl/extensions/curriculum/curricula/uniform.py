"""Every task equally often: the pool in a new random order each time it has been gone through.

The baseline of every other curriculum. It predicts the mean success of what was played so far.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from asyncrl.extensions.curriculum.curriculum import Curriculum, Outcome, Proposal
from asyncrl.types import Task


class Uniform(Curriculum):
    """See the module. Sampling without replacement within a pass over the pool."""

    def __init__(self, tasks: Sequence[Task], group_size: int, seed: int) -> None:
        super().__init__(tasks, group_size, seed)
        self.successes, self.episodes = 0.0, 0

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`; a task may be busy with its turn of the pass before."""
        size = len(self.tasks)
        passes = {
            n: self.rng(n).permutation(size) for n in {i // size for i in range(number, number + count)}
        }
        predicted = self.successes / self.episodes if self.episodes else None
        return [
            Proposal(int(passes[i // size][i % size]), self.group_size, predicted)
            for i in range(number, number + count)
        ]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Count successes."""
        self.successes += sum(sum(o.successes) for o in outcomes)
        self.episodes += sum(len(o.successes) for o in outcomes)

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return {"successes": self.successes, "episodes": self.episodes}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        self.successes, self.episodes = state["successes"], state["episodes"]
