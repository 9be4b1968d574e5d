"""Brings a trainer that has gone on with fewer machines back to all of them."""

from __future__ import annotations

from typing import Protocol

from asyncrl.extensions.machines.spread import Spread
from asyncrl.extensions.table import value_at
from asyncrl.launch.processes.process_group import Placed
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.launch.roles.policy_roles import PolicyRoles
from asyncrl.run.checkpoints import complete_checkpoints


class Places(Protocol):
    """What a cluster says of trainers' places, by the names of their processes."""

    def trainer_room(self, name: str) -> Spread | None:
        """Return the places of all ranks; None where there is no room for them, or none are missing."""

    def use(self, found: Spread, name: str) -> Placed:
        """Have the trainer start there from now on."""

    def said_trainer(self, name: str) -> str:
        """With how many of its ranks and machines the trainer works."""


class FullTrainer:
    """Starts the trainer again on all machines once there is room, when that costs least: after the next checkpoint."""

    def __init__(self, places: Places, roles: PolicyRoles, supervisor: Supervisor) -> None:
        self._places = places
        self._roles = roles
        self._supervisor = supervisor
        self._newest: int | None = None
        """The newest checkpoint on disk when there was room for the first time."""

    def tick(self) -> str:
        """Look for room; return what to tell the user, if anything."""
        trainer = self._roles.trainer
        found = self._places.trainer_room(trainer.name)
        if found is None or not self._supervisor.serves(trainer):
            self._newest = None
            return ""
        newest = max(
            (version for version, _ in complete_checkpoints(self._roles.folder / "checkpoints")), default=0
        )
        if self._newest is None:
            self._newest = newest
        if newest == self._newest and not value_at(self._roles.config, "train.memory_checkpoint_every"):
            return ""
        self._newest = None
        self._supervisor.start_again(trainer, "was ended to use all of its machines again")
        trainer.go_to(*self._places.use(found, trainer.name))
        return (
            f"{trainer.name}: there is room again, it goes on with {self._places.said_trainer(trainer.name)}"
        )
