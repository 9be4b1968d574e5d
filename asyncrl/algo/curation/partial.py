"""Partial rollouts: which requests finish and what the others keep when a step is cut short.

One token per request and tick, all requests starting together. APRIL (arXiv 2509.18521) stops when enough
requests are complete; C3PO++ (Ring-1T) after the first whole tick that reaches a token budget. What is left
keeps its tokens, log-probabilities and versions and is resumed before new prompts. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """State of the requests when generation stops."""

    tick: int
    completed: list[int]
    partial: dict[int, int]
    """Tokens so far of each unfinished request."""

    def tokens(self, required: Sequence[int]) -> int:
        """All tokens generated up to the cut."""
        return sum(required[i] for i in self.completed) + sum(self.partial.values())


def cut_at(required: Sequence[int], tick: int) -> Cut:
    """The cut after a number of ticks, for requests that need `required` tokens."""
    completed = [i for i, n in enumerate(required) if n <= tick]
    return Cut(tick, completed, {i: tick for i, n in enumerate(required) if n > tick})


def april(required: Sequence[int], target: int) -> Cut:
    """Stop when `target` of the oversampled requests are complete."""
    if not 1 <= target <= len(required):
        raise ValueError(f"target must be in 1..{len(required)}, got {target}")
    return cut_at(required, sorted(required)[target - 1])


def token_budget(required: Sequence[int], budget: int) -> Cut:
    """Stop after the first tick with at least `budget` tokens, or when all requests are complete."""
    tick = 0
    while tick < max(required, default=0) and sum(min(n, tick) for n in required) < budget:
        tick += 1
    return cut_at(required, tick)
