"""What optional features do in the trainer's loop: one protocol, and the trainer knows no feature by name.

    take       groups       complete the step's groups, or draw further ones
    build
    score      refuses      give the batch back
               batch        change what is trained, such as its rewards
    step       after_step   learn from the trained batch; say whether the policy is to go back to a checkpoint
    commit     trained      take in what was trained; the version is on its way

A callback is made where its setting asks for it (`asyncrl.train.loop.configured`). Its state is part of every
checkpoint under its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from asyncrl.endpoint import stop_file
from asyncrl.types import Group

if TYPE_CHECKING:
    from asyncrl.data.table import TokenValues
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.loop.callback_context import CallbackContext
    from asyncrl.train.loop.publication import Publication
    from asyncrl.train.step.step import StepReport
    from asyncrl.train.step.step_batch import FurtherGroups, StepBatch
    from asyncrl.train.step.step_settings import StepSettings


@dataclass(slots=True)
class StepGroups:
    """The groups that a step trains, on the first rank."""

    own: list[Group]
    """Those that the buffer gave for this step."""
    added_max_age: int = 0
    """Versions that the oldest token of a row which was added to one of them may be behind the step."""
    further: list[FurtherGroups] = field(default_factory=list)
    """Trained beside them, kind after kind."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a callback says of a step that was trained."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    go_back_to: int | None = None
    """The version of a checkpoint that the policy goes back to; None to go on."""
    message: str | Callable[[bool], str] = ""
    """What the run's log says of it; a function is told whether the policy has gone back."""
    level: int = logging.INFO
    """The level of that in the log."""
    stops_without: bool = True
    """Whether the run ends where the checkpoint to go back to is damaged; else it goes on with the policy it has."""


GO_ON = Verdict()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a callback does not let a batch be trained."""

    groups: Sequence[str]
    """The ids of those that are refused; the others are given back."""
    reason: str
    engines: Mapping[str, Sequence[str]] | None = None
    """Engines at fault, each with the groups that show it; without any the workers are."""
    blames: bool = True
    """Whether somebody is at fault; else the groups are sampled again."""


class TrainerCallback:
    """Does nothing. Every rank calls each method of the callbacks it has, in their order: what is a collective must be
    on all ranks, what only the first rank needs may be there alone."""

    name: ClassVar[str] = ""
    """The name of its state in checkpoints."""
    survives_going_back: ClassVar[bool] = False
    """Whether its state stays as it is when the policy goes back to an earlier checkpoint."""
    may_go_back: ClassVar[bool] = False
    """Whether its verdict may ask for that, so that the weights at the start are kept."""
    waits: ClassVar[bool] = False
    """Whether the time of `after_step` counts as waiting, and not as training."""

    served: Callable[[int], list[int]] | None = None
    """Returns the past versions that engines keep beside a version; None for a callback that keeps none."""

    @property
    def rate_factor(self) -> float:
        """What the scheduled learning rate is multiplied with."""
        return 1.0

    def attach(self, publication: Publication) -> None:
        """Take what brings versions to the engines, when the trainer is made."""

    def begin_work(self) -> None:
        """The trainer works next: it trains, or writes a checkpoint. A collective."""

    def end_work(self) -> None:
        """The trainer waits next, or the weights of a version have been read and engines load them. A collective; there
        may have been no work since the last one."""

    def join(self, engine: TrainEngine) -> bool:
        """Take part, before the first step, when the state has been restored; return whether that changed the weights.
        A collective."""
        return False

    def start(self, version: int) -> None:
        """Begin, for a run that is at `version`."""

    def groups(self, version: int, groups: StepGroups) -> None:
        """Change the groups of the step from `version`. On the first rank."""

    def refuses(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Refusal | None:
        """Return why the batch is not trained, before anything is; None where it may be. A collective, equal on all
        ranks."""
        return None

    def batch(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> StepBatch:
        """Return what is trained in place of a batch. A collective."""
        return batch

    def annotate(self, report: StepReport) -> None:
        """Add to the report of the step that trained what `batch` returned."""

    def after_step(
        self, engine: TrainEngine, batch: StepBatch, settings: StepSettings, report: StepReport
    ) -> Verdict:
        """Learn from a step, before its version is published. A collective."""
        return GO_ON

    def went_back(self) -> None:
        """The policy has gone back, and its version is known to the buffer. On the first rank."""

    def trained(
        self, batch: StepBatch, groups: Sequence[Group], poisoned: Collection[str], went_back: bool
    ) -> None:
        """Take in the step's own groups as they were played, of which `poisoned` ids were left out. On the first rank.

        went_back: whether the policy that they trained has been given up.
        """

    def before_checkpoint(self, engine: TrainEngine, on_disk: bool) -> None:
        """Prepare the state that a checkpoint is about to keep. A collective."""

    def metrics(self, step: int) -> Mapping[str, Any]:
        """Return metrics of a step. On the first rank."""
        return {}

    def poisoned(
        self,
        batch: StepBatch,
        wrong: Mapping[str, str],
        engines: Mapping[str, TrainEngine],
        state: Mapping[str, Any],
    ) -> Path | None:
        """Keep the groups that made loss or gradient not finite, by id with what is wrong; return where. A
        collective."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, tensors and plain values only; {} for nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def committed(self, version: int, groups: Sequence[Group], values: TokenValues) -> None:
        """The buffer has a version; its checkpoint is not complete yet. On the first rank, in a thread where versions
        are published in the background, one step after the other.

        groups: those that the step was given, as they were played. values: what it computed for their tokens.
        """

    def recorded(self, version: int, metrics: dict[str, Any]) -> None:
        """The step is over and counted; as `committed`."""

    def asked_to_stop(self) -> bool:
        """Return whether the run is to end after its current step. On the first rank, now and then."""
        return False

    def close(self) -> None:
        """The run has ended."""


class Recording(TrainerCallback):
    """Hands steps to functions, on the first rank: metrics to `on_step`, groups and token values to `on_commit`."""

    def __init__(
        self,
        on_step: Callable[[int, dict[str, Any]], None] = lambda *_: None,
        on_commit: Callable[[int, Sequence[Group], TokenValues], None] = lambda *_: None,
    ) -> None:
        self.on_step = on_step
        self.on_commit = on_commit

    def committed(self, version: int, groups: Sequence[Group], values: TokenValues) -> None:
        self.on_commit(version, groups, values)

    def recorded(self, version: int, metrics: dict[str, Any]) -> None:
        self.on_step(version, metrics)


def stop_file_callback(context: CallbackContext) -> StopFile | None:
    """Return what ends a run whose folder has a file that says so, on the first rank."""
    return StopFile(stop_file(context.arguments.folder)) if context.first else None


class StopFile(TrainerCallback):
    """Ends the run when a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def asked_to_stop(self) -> bool:
        return self.path.exists()


def states(callbacks: Iterable[TrainerCallback]) -> dict[str, Any]:
    """Return the states of all callbacks that have one, by name."""
    return {one.name: state for one in callbacks if (state := one.state_dict())}


def load_states(callbacks: Iterable[TrainerCallback], found: Mapping[str, Any], going_back: bool) -> None:
    """Give each callback the state it had. going_back: leave those alone that survive it."""
    for one in callbacks:
        if one.name in found and not (going_back and one.survives_going_back):
            one.load_state_dict(found[one.name])
