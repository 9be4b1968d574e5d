"""What the factories of callbacks are given: the run, and the parts of its trainer that are there before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.train.arguments import TrainerArguments

if TYPE_CHECKING:
    from asyncrl.train.checkpoint.checkpointer import Checkpointer
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.step.auxiliary_models import AuxiliaryModels


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRun:
    """A run, before its trainer has loaded a model."""

    config: Config
    objective: Objective
    arguments: TrainerArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackContext(TrainerRun):
    """A run whose trainer has its models."""

    engine: TrainEngine
    auxiliary: AuxiliaryModels
    checkpointer: Checkpointer | None = None

    @property
    def first(self) -> bool:
        """True on the first rank, which alone talks to other processes and has the groups."""
        return self.engine.rank == 0
