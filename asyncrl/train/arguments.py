"""The arguments of a trainer's process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.credentials import Credentials

if TYPE_CHECKING:
    from asyncrl.config import Config


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
    beside: Mapping[str, str] = field(default_factory=dict)
    """Such a file for each process that the trainer has for itself, by its role."""
    main_buffer: str = ""
    """For a further policy that plays no agent of its own, the buffer of the main policy, whose agents it plays."""
    machines: int = 1
    """Over which the ranks are spread."""

    def num_ranks(self, config: Config) -> int:
        """Return how many ranks the trainer has been started with."""
        return config.train.ranks_each * self.machines
