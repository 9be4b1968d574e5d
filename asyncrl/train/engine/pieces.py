"""Which part of each trained parameter this rank's optimizer keeps, under any ZeRO stage.

DeepSpeed gives its optimizer flat float32 tensors instead of the model's parameters. Under ZeRO a rank's flat tensors
hold its share: of most parameters a range of their elements, of some nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from torch import Tensor, nn

T = TypeVar("T")


class Part(Protocol):
    """The part of a parameter that a rank has, where each has one of a layer."""

    def name(self, parameter: str) -> str:
        """Return the name of this part of a parameter."""
        ...

    def names(self, parameter: str) -> list[str]:
        """Return the names of all parts."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of elements of one parameter, as this rank keeps it."""

    whole_name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    """The shape of the whole parameter, or of the part that ranks with the same `shard` have of it."""
    flat: Tensor
    """What the optimizer updates in its place; on a rank that keeps nothing of it, one that others keep it in."""
    start: int = 0
    """The first element, counted in the flattened parameter."""
    offset: int = 0
    """Where that is in `flat`."""
    numel: int = 0
    """How many elements; 0 on a rank that keeps nothing of it."""
    shard: Part | None = None
    """Which part of the parameter the piece is of, where the ranks have parts of layers."""

    @property
    def name(self) -> str:
        return self.whole_name if self.shard is None else self.shard.name(self.whole_name)

    @property
    def names_of_parts(self) -> list[str]:
        """The names of what all ranks have of the parameter."""
        return [self.whole_name] if self.shard is None else self.shard.names(self.whole_name)

    @property
    def whole_numel(self) -> int:
        return math.prod(self.shape)

    def of(self, tensor: Tensor) -> Tensor:
        """Return the piece [numel] of a tensor that is laid out as `flat` is."""
        return tensor.detach().view(-1).narrow(0, self.offset, self.numel)


def whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Return the shape of a parameter that ZeRO-3 may have divided."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def whole_numel(parameter: nn.Parameter) -> int:
    return math.prod(whole_shape(parameter))


def buckets(items: Iterable[T], size: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Divide items into consecutive lists of sizes up to `most` in all, or of one that is larger."""
    bucket: list[T] = []
    held = 0
    for item in items:
        if bucket and held + size(item) > most:
            yield bucket
            bucket, held = [], 0
        bucket.append(item)
        held += size(item)
    if bucket:
        yield bucket


def find_pieces(module: nn.Module, optimizer: Any, stage: int, rank: int) -> list[Piece]:
    """Return the pieces of all trained parameters, in the model's order, which is the same on every rank."""
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if stage == 0:
        return [Piece(n, p, tuple(p.shape), p, numel=p.numel()) for n, p in trained]
    if stage == 3:
        return [_divided(name, parameter, optimizer, rank) for name, parameter in trained]
    bf16 = isinstance(optimizer, BF16_Optimizer)
    flats = optimizer.fp32_groups_flat_partition if bf16 else optimizer.single_partition_of_fp32_groups
    groups = optimizer.bf16_groups if bf16 else optimizer.bit16_groups
    group_of = {id(parameter): number for number, group in enumerate(groups) for parameter in group}
    return [_fragment(n, p, flats[group_of[id(p)]]) for n, p in trained]


def _fragment(name: str, parameter: nn.Parameter, flat: Tensor) -> Piece:
    """Return the piece under ZeRO-1 and -2, whose flat tensors are consecutive parts of all parameters in a row."""
    link: Any = getattr(parameter, "_hp_mapping", None)
    if link is None:
        return Piece(name, parameter, tuple(parameter.shape), flat)
    low, high = link.lp_fragment_address, link.hp_fragment_address
    return Piece(name, parameter, tuple(parameter.shape), flat, low.start, high.start, low.numel)


def _divided(name: str, parameter: nn.Parameter, optimizer: Any, rank: int) -> Piece:
    """Return the piece under ZeRO-3, which divides each parameter evenly and fills the last piece up."""
    group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
    divided: Any = parameter
    numel = max(0, min(size, divided.ds_numel - rank * size))
    flat = optimizer.fp32_partitioned_groups_flat[group]
    return Piece(
        name, parameter, whole_shape(parameter), flat, min(rank * size, divided.ds_numel), offset, numel
    )
