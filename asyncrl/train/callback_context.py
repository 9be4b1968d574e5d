"""What the factories of callbacks are given: the run, and the parts of its trainer that are there before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.credentials import Credentials

if TYPE_CHECKING:
    from asyncrl.train.auxiliary_models import AuxiliaryModels
    from asyncrl.train.checkpointer import Checkpointer
    from asyncrl.train.deepspeed_engine import TrainEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerArguments:
    """What a trainer's process is started with, each of its ranks alike."""

    folder: Path
    """The folder of the run. Ranks on other machines may not have it."""
    model: str
    """The base model's folder or name."""
    buffer: str
    """Its address."""
    engines: Sequence[str]
    """Addresses, or one "@FILE" that will hold them, so that the model can be loaded meanwhile."""
    weights_dir: Path
    """Where versions are written."""
    credentials: Credentials
    old_policy: str = ""
    """Such a file for the old-policy process; "" where there is none."""
    main_buffer: str = ""
    """For an exploiter, the buffer of the policy that it is trained against."""
    exploits: int = 0
    """For an exploiter, its limit of versions; 0 for every other policy."""
    machines: int = 1
    """Over which the ranks are spread."""

    def num_ranks(self, config: Config) -> int:
        """Return how many ranks the trainer has been started with."""
        return config.train.ranks_each * self.machines


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
