"""The parts of training steps that an objective may read: a table, each of whose factories stands beside its part.

Rows ask with the objective, as in `needs.answers`; extensions add theirs (`step_parts`). A factory takes a
`PartContext` and returns a `StepPart`. Nothing is imported of a part that is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.extensions.table import Row, merged

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


PARTS = (
    Row(
        name="reference", path="asyncrl.train.parts.reference:reference", asked=("needs.reference",), place=3
    ),
)
"""Those that come with the core."""


def read_by(objective: Objective) -> Iterator[Row]:
    """Yield the parts that an objective reads, in the order in which they are called."""
    return (row for row in merged("step_parts", PARTS) if row.wanted(objective))


def made(context: PartContext) -> Iterator[StepPart]:
    """Yield the parts that the objective reads. A collective."""
    for row in read_by(context.objective):
        yield row.load()(context)
