"""Numbers over the whole batch of a step, by name: what its passes computed, and what losses and advantages read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from asyncrl.algo.metrics import Metrics
from asyncrl.train.step.ragged import Ragged

FOR_ADVANTAGES = {
    "proximal_logp": "old_logp",
    "reference_logp": "reference_logp",
    "entropy": "entropy",
    "sum_pi_squared": "sum_pi_squared",
    "old_values": "values",
}
"""What `AdvantageBatch` calls the tensors that losses also know."""
NOT_FOR_LOSS = frozenset({"entropy", "sum_pi_squared"})
"""What only advantages read: a loss has the entropy of the current policy."""


@dataclass(slots=True)
class StepTensors:
    """Named numbers over the whole batch. They are on the first rank; on the others rows are empty."""

    tensors: dict[str, Ragged] = field(default_factory=dict)
    """The tensors of the sampled tokens, by their `LossInputs` name, or that of `AdvantageBatch` where a loss has
    none."""
    rows: dict[str, Tensor] = field(default_factory=dict)
    """[B], or [B,K] by turn, by their `AdvantageBatch` name."""
    statistics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars of the whole step that some corrections read (`Objective.step_statistics`); on every rank."""
    zero_advantage: frozenset[int] = frozenset()
    """Rows whose advantages are all 0; on every rank."""
    policy_logp: Ragged | None = None
    """The log-probabilities of the policy at the start of the step, where it was computed; the proximal one may be
    another."""
    trained: frozenset[int] | None = None
    """The rows that may enter the loss; None for all."""
    metrics: Metrics = field(default_factory=dict)
    """The metrics of parts, on the first rank."""
    of_parts: dict[str, Any] = field(default_factory=dict)
    """What a part keeps of the batch between its calls, by its name; on every rank."""

    def for_advantages(self, rows: list[int]) -> dict[str, Tensor]:
        """Return the fields of `AdvantageBatch` for `rows`, tokens as [len(rows),S]."""
        named = {
            FOR_ADVANTAGES[name]: values.padded(rows)
            for name, values in self.tensors.items()
            if name in FOR_ADVANTAGES
        }
        return named | {name: values[rows] for name, values in self.rows.items()}

    def for_loss(self) -> dict[str, Ragged]:
        """Return what `LossInputs` takes, by its names there."""
        return {name: values for name, values in self.tensors.items() if name not in NOT_FOR_LOSS}
