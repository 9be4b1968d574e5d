"""A policy's optimizer state by parameter name, for any number of ranks, any ZeRO stage and offload.

It is what the optimizer keeps of each trained parameter, in float32: the weight and its moments. A rank reads and
writes its own pieces of them (`asyncrl.train.engine.pieces`); DeepSpeed's universal checkpoints would convert flat
partitions offline into many files instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.optimizers import moments_of, read_moment, steps_taken, write_moments
from asyncrl.train.engine.pieces import Piece

WEIGHT = "weight"
STEPS = "adam_step"
"""Under this name a state holds the number of optimizer steps taken."""


class State(Protocol):
    """A kept state, from which each rank reads its pieces."""

    def num_steps(self) -> int | None:
        """Return the number of optimizer steps taken; None where it holds no state."""
        ...

    def shape(self, key: str) -> tuple[int, ...] | None:
        """Return the shape of the whole tensor KIND/NAME; None where there is none."""
        ...

    def read(self, key: str, start: int, numel: int) -> Tensor:
        """Return elements of the flattened tensor KIND/NAME, [numel] in float32."""
        ...


class WholeTensors:
    """A state of whole tensors, as `gather_state` returns it."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def num_steps(self) -> int | None:
        return int(self._tensors[STEPS]) if STEPS in self._tensors else None

    def shape(self, key: str) -> tuple[int, ...] | None:
        return tuple(self._tensors[key].shape) if key in self._tensors else None

    def read(self, key: str, start: int, numel: int) -> Tensor:
        return self._tensors[key].reshape(-1).narrow(0, start, numel)


def kept_pieces(engine: TrainEngine) -> Iterator[tuple[str, Piece, Tensor]]:
    """Yield `(KIND/NAME, piece, its elements [numel])` of all that the optimizer keeps, in one order on every rank.

    Before the first optimizer step there are only weights. The elements may be views of what is trained.
    """
    moved = steps_taken(engine.optimizer) > 0
    read: dict[tuple[int, str], Tensor] = {}
    for piece in engine.pieces:
        engine.progress.mark()
        yield f"{WEIGHT}/{piece.name}", piece, piece.of(piece.flat)
        for moment in moments_of(engine.optimizer, piece) if moved else ():
            place = id(piece.flat), moment
            if place not in read:
                # Those of the flat tensor before this one need not be kept.
                read = {one: tensor for one, tensor in read.items() if one[0] == place[0]}
                read[place] = read_moment(engine.optimizer, piece.flat, moment)
            yield f"{moment}/{piece.name}", piece, piece.of(read[place])


def gather_state(engine: TrainEngine) -> dict[str, Tensor]:
    """Return the whole tensors KIND/NAME as float32 CPU copies on rank 0, with the count of steps. A collective.

    Other ranks get an empty dictionary. For small models: a checkpoint keeps pieces instead.
    """
    found: dict[str, Tensor] = {}
    for key, piece, elements in kept_pieces(engine):
        whole = _whole(engine, piece, elements)
        if engine.rank == 0:
            found[key.replace(piece.name, piece.whole_name)] = whole.cpu()
    if engine.rank == 0:
        found[STEPS] = torch.tensor(float(steps_taken(engine.optimizer)))
    return found


def _whole(engine: TrainEngine, piece: Piece, elements: Tensor) -> Tensor:
    """Return all of the parameter of which each rank has a piece. A collective."""
    whole = torch.zeros(piece.whole_numel, device=engine.device)
    whole.narrow(0, piece.start, piece.numel).copy_(elements)
    if engine.divided:
        dist.all_reduce(whole, group=engine.ranks_of_pieces)
    return engine.layout.whole(piece.parameter, whole.view(piece.shape))


def gather_weights(engine: TrainEngine, names: Collection[str]) -> dict[str, Tensor]:
    """Return the float32 weights of trained parameters as CPU copies on rank 0, nothing on the others. A collective."""
    found: dict[str, Tensor] = {}
    for piece in engine.pieces:
        if piece.name in names:
            engine.progress.mark()
            whole = _whole(engine, piece, piece.of(piece.flat))
            if engine.rank == 0:
                found[piece.name] = whole.cpu()
    return found


@torch.no_grad()
def set_weights(engine: TrainEngine, names: Collection[str], weights: Mapping[str, Tensor]) -> None:
    """Give trained parameters rank 0's float32 `weights`, in optimizer and model; moments stay. A collective."""
    for piece in engine.pieces:
        if piece.name not in names:
            continue
        given = weights[piece.name].reshape(-1) if engine.rank == 0 else None
        body = engine.broadcast_bytes(given.numpy().tobytes() if given is not None else None)
        if piece.numel:
            whole = torch.frombuffer(bytearray(body), dtype=torch.float32)
            piece.of(piece.flat).copy_(whole.narrow(0, piece.start, piece.numel))
    engine.follow_optimizer()


@torch.no_grad()
def load_state(engine: TrainEngine, state: State) -> None:
    """Put a kept state back. A collective.

    Raises `InputError` naming the first parameter that is missing or has another shape; nothing has changed then.
    """
    steps = state.num_steps()
    if steps is None:
        raise InputError(
            "checkpoint: holds no optimizer state of this engine; was it made by another recipe?"
        )
    for piece in engine.pieces:
        for kind in (WEIGHT, *(moments_of(engine.optimizer, piece) if steps else ())):
            given = state.shape(f"{kind}/{piece.name}")
            if given != piece.shape:
                what = "is missing" if given is None else f"has shape {given}, expected {piece.shape}"
                raise InputError(
                    f"checkpoint: {kind} of {piece.name} {what}; was it made by another model, train.optimizer or "
                    "train.tensor_parallel?"
                )
    together: dict[int, list[Piece]] = {}
    for piece in engine.pieces:
        together.setdefault(id(piece.flat), []).append(piece)
    for pieces in together.values():
        engine.progress.mark()
        flat = pieces[0].flat
        _fill(flat, pieces, WEIGHT, state)
        moments = {moment: torch.zeros_like(flat) for moment in moments_of(engine.optimizer, pieces[0])}
        for moment, tensor in moments.items() if steps else ():
            _fill(tensor, pieces, moment, state)
        if steps or steps_taken(engine.optimizer):
            # A state of before the first step has none of its own: they are zero.
            write_moments(engine.optimizer, flat, moments, steps)
    engine.follow_optimizer()


def _fill(tensor: Tensor, pieces: list[Piece], kind: str, state: State) -> None:
    for piece in pieces:
        if piece.numel:
            piece.of(tensor).copy_(state.read(f"{kind}/{piece.name}", piece.start, piece.numel))
