"""Seeding of tasks that fail: examples of similar tasks that the policy itself has solved, for their prompts.

    corpus: the newest success of each task, at most `CORPUS` of them, the newest ones
    a task whose newest group had no success  ->  the K successes at other tasks that are most similar to it

Similarity is the cosine of the tasks' embeddings (`embedding.embed`); where tasks cannot be compared, the newest
successes are taken. A success that was seeded itself is no example, and a success at the task itself neither: it would
be copied.

Source: XRPO, arXiv 2510.06672, section on in-context seeding, K = 2 there. What counts as similar, the size of the
corpus and the limit on an example's length are ours. Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from asyncrl.errors import InputError
from asyncrl.extensions.curriculum.curriculum import Outcome
from asyncrl.extensions.curriculum.embedding import embed
from asyncrl.extensions.replay.success_pool import best_success
from asyncrl.types import IMAGES, SEEDED, Task, Trajectory

CORPUS = 64
"""Successes that are remembered."""
EXAMPLE_CHARACTERS = 4000
"""The most characters of an example's transcript; a longer one would leave a prompt little room."""


def example_of(trajectories: Iterable[Trajectory]) -> str:
    """Return the transcript of a group's best success that may be an example, "" where there is none."""
    found = best_success(
        t for t in trajectories
        if SEEDED not in t.info and IMAGES not in t.extras and 0 < len(t.conversation) <= EXAMPLE_CHARACTERS
    )  # fmt: skip
    return "" if found is None else found.conversation


class Seeding:
    """Which tasks are seeded, and with what. count: examples of a task."""

    def __init__(self, tasks: Sequence[Task], count: int) -> None:
        self.count = count
        self.failing = [False] * len(tasks)
        """For each task, whether its newest group had no success."""
        self.corpus: dict[int, str] = {}
        """Transcripts of successes by the task's place in the pool, the newest last."""
        try:
            self.embeddings = embed(tasks) if tasks else None
        except InputError:
            self.embeddings = None

    def examples(self, place: int) -> tuple[str, ...]:
        """Return the transcripts that a task is seeded with, the most similar first; none for a task that succeeds."""
        if not self.failing[place]:
            return ()
        others = [other for other in reversed(self.corpus) if other != place]
        if self.embeddings is not None and others:
            # The sort is stable: of equally similar ones the newest come first.
            order = np.argsort(-(self.embeddings[others] @ self.embeddings[place]).round(9), kind="stable")
            others = [others[int(i)] for i in order]
        return tuple(self.corpus[other] for other in others[: self.count])

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Take in the outcomes of a version."""
        for one in outcomes:
            if one.successes:
                self.failing[one.place] = max(one.successes) <= 0
            if one.example:
                self.corpus.pop(one.place, None)
                self.corpus[one.place] = one.example
        for place in list(self.corpus)[:-CORPUS]:
            del self.corpus[place]

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "failing": list(self.failing),
            "corpus": [[place, text] for place, text in self.corpus.items()],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned."""
        self.failing = list(state["failing"])
        self.corpus = dict(state["corpus"])
