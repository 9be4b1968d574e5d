"""Length of episodes by the difficulty that was observed: around any curriculum.

    longest_i = the most turns of an episode that succeeded at task i, over all that was observed
    limit_i   = ceil(slack longest_i),  none where no episode has succeeded

An episode that goes far beyond the longest way that ever led to a success is ended: it mostly wanders until the
environment ends it. Tasks without a success keep the whole length.

Source: DART-GUI, arXiv 2509.23866, whose limit is the longest success itself. Then no longer success can follow, and
`slack` above 1 leaves room for one. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from asyncrl.extensions.curriculum.curriculum import Curriculum, Outcome, Proposal


class FittedLength(Curriculum):
    """Proposes what `inner` proposes, with a limit on turns. slack: at least 1."""

    def __init__(self, inner: Curriculum, slack: float) -> None:
        super().__init__(inner.tasks, inner.group_size, inner.seed)
        self.inner = inner
        self.slack = slack
        self.keeps_examples = inner.keeps_examples
        self.longest = [0] * len(inner.tasks)

    def limit(self, place: int) -> int:
        """Return the turns that an episode of a task may have, 0 for no limit."""
        # Rounded first: 1.1 times 10 is a little more than 11.
        return math.ceil(round(self.slack * self.longest[place], 6))

    def propose(self, count: int, number: int, busy: Collection[int] = ()) -> list[Proposal]:
        """See `Curriculum.propose`."""
        proposals = self.inner.propose(count, number, busy)
        return [replace(one, max_turns=self.limit(one.place)) for one in proposals]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """See `Curriculum.observe`. An episode of a success above 0 counts as one that succeeded."""
        self.inner.observe(outcomes)
        for one in outcomes:
            turns = [n for n, success in zip(one.turns, one.successes, strict=False) if success > 0]
            self.longest[one.place] = max([self.longest[one.place], *turns])

    def state(self) -> dict[str, Any]:
        """See `Curriculum.state`."""
        return {"inner": self.inner.state(), "longest": list(self.longest)}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Curriculum.load_state`."""
        self.inner.load_state(state["inner"])
        self.longest = list(state["longest"])
