"""The settings of supervised phases, `[sft_phase]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class SftPhaseConfig(Section):
    """Supervised phases between steps, on the run's own successes
    (docs/algorithms/regularisation.md)."""

    fixed: ClassVar[bool] = True
    of_further_policies: ClassVar[Mapping[str, Any]] = {"every": 0}

    every: Seldom[int] = Field(0, ge=0)
    """Steps between phases; 0 for none."""
    steps: Seldom[int] = Field(4, ge=1)
    """Optimizer steps of a phase."""
    learning_rate: Seldom[float] = Field(1e-5, ge=0)
    """Learning rate of a phase."""
    keep: Seldom[int] = Field(256, ge=1)
    """Successful trajectories remembered between phases, one a task."""
