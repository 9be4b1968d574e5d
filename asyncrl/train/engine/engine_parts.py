"""Optional ways to train a model, as its engine sees them: a table of parts.

A part is made of the training section alone, so that a prediction of memory has the same settings. Nothing is imported
of a part that is not asked for.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from asyncrl.config import TrainConfig
from asyncrl.extensions.table import rows
from asyncrl.train.engine.pieces import Part, whole_shape


class Layout:
    """Where a model's parameters are. Here each rank has whole ones, however ZeRO divides them."""

    ranks = 1
    """How many consecutive ranks have a part of each layer."""

    def part(self, parameter: nn.Parameter) -> Part | None:
        """Return the part that this rank has of a parameter; None of one that it has as a whole."""
        return None

    def whole(self, parameter: nn.Parameter, of: Tensor) -> Tensor:
        """Return all of a tensor `of` which each rank has the part that it has of a parameter. A collective."""
        return of

    def whole_shape(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """Return the shape that a parameter has when it is whole."""
        return whole_shape(parameter)

    def ranks_of_pieces(self, optimizer: Any) -> Any:
        """Return the ranks whose pieces make up what this rank has a piece of: None for all."""
        return None


class EnginePart:
    """What a way to train does with the engine. train: the training section."""

    ranks = 1
    """How many consecutive ranks compute the same rows together for it."""

    def __init__(self, train: TrainConfig) -> None:
        self.train = train

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return DeepSpeed's settings for it, section by section."""
        return {}

    def joined(self, policy: nn.Module) -> None:
        """Get ready with all other ranks, before DeepSpeed has the model. Raises `ConfigError` for one that it cannot
        train. A collective."""

    def initialized(self, engine: Any) -> None:
        """Change a DeepSpeed engine that has computed nothing yet. A collective."""

    def made(self, engine: Any, optimizer: Optimizer) -> None:
        """Change a DeepSpeed engine that has computed a first pass, with the optimizer that it was given."""

    def layout(self, module: nn.Module) -> Layout | None:
        """Return where it has put the parameters of DeepSpeed's module; None where it has left them."""
        return None


PARTS = rows("engine_parts")
"""In the order in which they are called."""


def parts_of(train: TrainConfig) -> list[EnginePart]:
    """Return the parts that a training section asks for."""
    return [row.load()(train) for row in PARTS if row.wanted(train)]


def layout_of(parts: list[EnginePart], module: nn.Module) -> Layout:
    """Return where the parts have put a module's parameters."""
    return next((found for part in parts if (found := part.layout(module)) is not None), Layout())
