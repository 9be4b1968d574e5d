"""Declare what a function reads beyond the tensors every step has.

`@needs("values")` sets the attribute `needs` and is also read from the source text without importing it, so a
launcher can tell that a run has a critic without loading torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

KNOWN = {
    "reference": "log-probabilities of a frozen reference policy",
    "teacher": "log-probabilities of a teacher policy",
    "teacher_logits": "full-vocabulary logits of student and teacher",
    "values": "a critic",
    "entropy": "the full-softmax entropy of every token",
    "behavior": "the engine's log-probabilities",
    "proximal": "an anchor policy for the trust region",
    "versions": "the version that sampled every token",
    "scores": "trajectory rewards inside the loss",
    "pairs": "whole groups in one micro-batch",
    "turns": "turn boundaries and turn rewards",
    "observations": "an observation id per turn",
    "matches": "whether each action agrees with a recorded one",
    "components": "named reward components",
    "branches": "where each sequence branches off another",
    "agents": "the agent that produced each sequence",
    "greedy": "a greedy rollout per prompt",
    "baselines": "a per-prompt baseline tracker",
    "score_norms": "per-trajectory gradient norms",
    "sum_pi_squared": "the sum of squared probabilities of every token",
    "statistics": "statistics of the whole step before the first micro-batch",
}

F = TypeVar("F", bound=Callable)


def needs(*names: str) -> Callable[[F], F]:
    """Mark a function with what it reads; ValueError for a word outside `KNOWN`."""
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise ValueError(f"unknown need {unknown[0]!r}; allowed: {', '.join(KNOWN)}")

    def mark(function: F) -> F:
        function.needs = names  # type: ignore[attr-defined]
        return function

    return mark
