"""What the callbacks have in common that keep groups of earlier steps, on the first rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

from asyncrl.train.loop.callbacks import TrainerCallback
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.types import Group


class GroupPool(Protocol):
    """Groups that the trainer keeps beyond their step; part of its checkpoint."""

    max_age: int
    """Versions that a token of a kept group may be behind the step it is for."""

    def remember(self, trained: Sequence[Group], step: int, without: Collection[str] = ()) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


Pool = TypeVar("Pool", bound=GroupPool)


class PoolCallback(TrainerCallback, Generic[Pool]):
    """Has a pool remember what was trained, but for a policy that was given up, and keeps it in checkpoints."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def trained(
        self, batch: StepBatch, groups: Sequence[Group], poisoned: Collection[str], went_back: bool
    ) -> None:
        if not went_back:
            self.pool.remember(groups, batch.step, poisoned)

    def state_dict(self) -> dict[str, Any]:
        return self.pool.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pool.load_state_dict(state)
