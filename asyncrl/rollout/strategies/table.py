"""All strategies, and those of a run."""

from __future__ import annotations

from collections.abc import Callable

from asyncrl.rollout.group import GroupStrategy
from asyncrl.rollout.strategies import (
    answers,
    branches,
    examples,
    greedy,
    hints,
    opponents,
    policies,
)
from asyncrl.rollout.strategies.parts import WorkerParts

STRATEGIES: dict[str, Callable[[WorkerParts], GroupStrategy | None]] = {
    "policies": policies.configured,
    "opponents": opponents.configured,
    "answers": answers.configured,
    "examples": examples.configured,
    "greedy": greedy.configured,
    "hints": hints.configured,
    "branches": branches.configured,
}
"""What makes each strategy of a worker's parts, None where the run does not use it. The outermost is the first: who
samples the turns, what is noted and shown, then what is given of them."""


def configured(parts: WorkerParts) -> tuple[GroupStrategy, ...]:
    """Return the strategies of a run, the outermost first. Raises `ConfigError` for what cannot be played so."""
    made = [make(parts) for make in STRATEGIES.values()]
    return tuple(strategy for strategy in made if strategy is not None)
