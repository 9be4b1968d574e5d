"""Rollout replay: train groups of earlier steps again, beside the fresh ones.

    step k trains  P fresh groups  and  min(R, available) replayed ones,  drawn uniformly without replacement
    available: groups that were trained in earlier steps, whose rewards differ, with  k - oldest version <= max_age

Each keeps the log-probabilities of the policies that sampled it, so losses and corrections weigh it as any stale data.
The newest `KEPT * R` are remembered, first in, first out. Source: arXiv 2506.05316, code in
ASTRAL-Group/data-efficient-llm-rl, which draws half of a batch from a queue of 512 groups; the limit on age and the
choice of groups whose rewards differ are ours. Torch-free.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 8
"""Times as many groups are remembered as a step draws."""


@dataclass(frozen=True, slots=True)
class Played:
    """What is asked of a group that may be replayed."""

    id: str
    oldest: int
    """Lowest version among its sampled tokens."""
    rewards: tuple[float, ...]
    """The rewards of its usable trajectories."""

    @property
    def has_signal(self) -> bool:
        return len(set(self.rewards)) > 1


def remembered(groups: Sequence[Played], step: int, count: int, max_age: int) -> list[Played]:
    """Return which of the groups trained so far, oldest first, are worth keeping after `step`."""
    useful = [one for one in groups if one.has_signal and step + 1 - one.oldest <= max_age]
    return useful[-KEPT * count :] if count else []


def drawn(groups: Sequence[Played], step: int, count: int, max_age: int, seed: int) -> list[Played]:
    """Return the groups that `step` trains again; the same ones whenever it is asked for the same step."""
    available = [one for one in groups if step - one.oldest <= max_age]
    return random.Random(f"{seed}/{step}").sample(available, min(count, len(available)))
