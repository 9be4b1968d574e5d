"""The parts of training steps that an objective may read: a table, each of whose factories stands beside its part.

Extensions add rows (`step_parts`), which ask with the objective, as in `needs.answers`. A factory takes a
`PartContext` and returns a `StepPart`. Nothing is imported of a part that is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.extensions.table import rows
from asyncrl.import_path import load_object

if TYPE_CHECKING:
    from asyncrl.train.arguments import TrainerArguments
    from asyncrl.train.engine.deepspeed_engine import TrainEngine
    from asyncrl.train.step.step_part import StepPart


@dataclass(frozen=True, slots=True, kw_only=True)
class PartContext:
    """What the factories of parts are given."""

    config: Config
    objective: Objective
    engine: TrainEngine
    """The policy's."""
    model: str
    """The base model's folder or name."""
    arguments: TrainerArguments | None = None
    """The arguments of the trainer's process; None where a step is taken without one."""


class Part(NamedTuple):
    """One that an objective may read."""

    name: str
    words: frozenset[str]
    """Of `asyncrl.algo.needs.KNOWN`: any of them asks for it."""
    factory: str
    """The import path of what makes it."""

    def asked(self, needs: Collection[str]) -> bool:
        """Return whether an objective with these needs reads it."""
        return not self.words.isdisjoint(needs)


PARTS = (Part("reference", frozenset({"reference"}), "asyncrl.train.parts.reference:reference"),)
"""In the order in which they are called."""


class Read(NamedTuple):
    """A part that an objective reads."""

    name: str
    word: str
    """What asks for it."""
    load: Callable[[], Any]
    """Returns its factory."""


def read_by(objective: Objective) -> Iterator[Read]:
    """Yield the parts that an objective reads, in the order in which they are called."""
    for one in PARTS:
        if one.asked(objective.needs):
            load = partial(load_object, "objective", one.factory)
            yield Read(one.name, min(one.words & objective.needs), load)
    for row in rows("step_parts"):
        if row.wanted(objective):
            yield Read(row.name, row.name, row.load)


def made(context: PartContext) -> Iterator[StepPart]:
    """Yield the parts that the objective reads. A collective."""
    for one in read_by(context.objective):
        yield one.load()(context)
