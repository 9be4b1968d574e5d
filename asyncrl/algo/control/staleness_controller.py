"""Close the loop on asynchrony: move `max_staleness` by the effective sample size it produces.

Below `low` the data is too old to be worth its weight: one version less. Above `high` there is room to be
more asynchronous: one version more. Both need `patience` steps in a row, counted again after every move,
because a change shows in the data only after the buffer has turned over. Torch-free; the state is a value,
so it is saved with a checkpoint as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """Bounds and thresholds. ESS ratios are in (0, 1]."""

    minimum: int = 0
    maximum: int = 8
    low: float = 0.3
    high: float = 0.7
    patience: int = 5

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"need 0 <= minimum <= maximum, got {self.minimum} and {self.maximum}")
        if not 0 <= self.low < self.high <= 1:
            raise ValueError(f"need 0 <= low < high <= 1, got {self.low} and {self.high}")
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience}")


@dataclass(frozen=True, slots=True)
class StalenessState:
    """What the controller remembers between steps."""

    max_staleness: int
    steps_low: int = 0
    steps_high: int = 0


def next_staleness(state: StalenessState, ess_ratio: float, rule: StalenessRule) -> StalenessState:
    """State after a step with this ESS ratio; `max_staleness` moves by at most one, within bounds."""
    low = state.steps_low + 1 if ess_ratio < rule.low else 0
    high = state.steps_high + 1 if ess_ratio > rule.high else 0
    current = min(max(state.max_staleness, rule.minimum), rule.maximum)
    if low >= rule.patience and current > rule.minimum:
        return StalenessState(current - 1)
    if high >= rule.patience and current < rule.maximum:
        return StalenessState(current + 1)
    return replace(state, max_staleness=current, steps_low=low, steps_high=high)
