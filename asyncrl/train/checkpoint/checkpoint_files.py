"""The files of a checkpoint's training state: each rank's pieces, read by any number of ranks.

A tensor that a rank keeps whole is stored as KIND/NAME, a piece of one as KIND/NAME@START, flattened. A rank that
resumes reads the ranges of elements that it keeps, from whichever files hold them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.run.checkpoints import state_file, state_files
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.full_state import STEPS, kept_pieces
from asyncrl.train.engine.optimizers import steps_taken

Range = tuple[int, int]
"""The first element of a flattened tensor and the one after the last."""


def own_tensors(engine: TrainEngine, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Return float32 CPU copies of what this rank stores of the optimizer's state, and the shapes of all its tensors.

    Where the ranks keep the same they share the work.
    """
    found: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    stored = [0] * engine.num_ranks
    for key, piece, elements in kept_pieces(engine):
        for name in piece.names_of_parts:
            shapes[prefix + key.replace(piece.name, name)] = list(piece.shape)
        owner = engine.rank if engine.divided else stored.index(min(stored))
        stored[owner] += piece.numel
        if owner == engine.rank and piece.numel:
            copy = elements.to("cpu", torch.float32, copy=True)
            whole = piece.numel == piece.whole_numel
            name = prefix + (key if whole else f"{key}@{piece.start}")
            found[name] = copy.view(piece.shape) if whole else copy
    if engine.rank == 0:
        found[prefix + STEPS] = torch.tensor(float(steps_taken(engine.optimizer)))
    return found, shapes


class StateFiles:
    """The stored tensors of a training state by name, read when they are asked for; those of one `rank` alone."""

    def __init__(self, folder: Path, rank: int | None = None) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._files: dict[str, Any] = {}
        for path in state_files(folder) if rank is None else [folder / state_file(rank)]:
            file = safe_open(str(path), "pt")
            for name in file.keys():  # noqa: SIM118
                self.shapes[name], self._files[name] = tuple(file.get_slice(name).get_shape()), file

    def whole(self, name: str) -> Tensor:
        return self._files[name].get_tensor(name)

    def read(self, name: str, elements: Range) -> Tensor:
        """Return a range of the flattened tensor, without reading the rows before and after it."""
        shape = self.shapes[name]
        if not shape:
            return self.whole(name).view(1)
        row = max(1, math.prod(shape[1:]))
        first = elements[0] // row
        rows = self._files[name].get_slice(name)[first : -(-elements[1] // row)]
        return rows.reshape(-1)[elements[0] - first * row : elements[1] - first * row]


class SentTensors:
    """Stored tensors that were sent to ranks that do not see the files; used as `StateFiles` is."""

    def __init__(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self._tensors = tensors

    def whole(self, name: str) -> Tensor:
        return self._tensors[name]

    def read(self, name: str, elements: Range) -> Tensor:
        return self._tensors[name].reshape(-1)[elements[0] : elements[1]]


def open_state(
    engine: TrainEngine, folder: Path, trained: Mapping[str, TrainEngine]
) -> StateFiles | SentTensors:
    """Return the stored tensors on every rank. A collective.

    trained: the engines whose pieces will be read, by the prefix of their keys. Where a rank does not see the folder,
    as on another machine, rank 0 sends all tensors one by one, and each rank keeps those it needs.
    """
    seen = torch.tensor([int(bool(state_files(folder)))], device=engine.device)
    engine.all_reduce(seen, "min")
    if int(seen):
        return StateFiles(folder)
    files = StateFiles(folder) if engine.rank == 0 else None
    listed = engine.broadcast(
        [[name, list(shape)] for name, shape in files.shapes.items()] if files else None
    )
    own = places_of(trained)
    kept: dict[str, Tensor] = {}
    for name, shape in listed:
        body = engine.broadcast_bytes(save({name: files.whole(name)}) if files else None)
        if is_needed(name, math.prod(shape), own):
            kept[name] = load(body)[name]
    return SentTensors(kept, {name: tuple(shape) for name, shape in listed})


def places_of(trained: Mapping[str, TrainEngine]) -> dict[str, Range]:
    """Return which elements of each parameter this rank keeps."""
    return {
        f"{prefix}{piece.name}": (piece.start, piece.start + piece.numel)
        for prefix, one in trained.items()
        for piece in one.pieces
    }


def is_needed(name: str, numel: int, own: Mapping[str, Range]) -> bool:
    """True for a tensor of which this rank keeps something, and for all that is not of an optimizer's state."""
    key, start = parse_name(name)
    prefix, _, rest = key.rpartition(":")
    place = own.get(f"{prefix}:{rest.partition('/')[2]}".removeprefix(":"))
    return place is None or (start < place[1] and place[0] < start + numel)


def parse_name(name: str) -> tuple[str, int]:
    """Return the key and the first element of a stored tensor."""
    key, at, start = name.rpartition("@")
    return (key, int(start)) if at and start.isdigit() else (name, 0)


class KeptState:
    """The state of one engine in a checkpoint, a `asyncrl.train.engine.full_state.State`."""

    def __init__(
        self, stored: StateFiles | SentTensors, shapes: Mapping[str, Iterable[int]], prefix: str = ""
    ) -> None:
        self._stored = stored
        self._prefix = prefix
        self._shapes = {key: tuple(shape) for key, shape in shapes.items()}
        self._places: dict[str, list[tuple[int, int, str]]] = {}
        for name, shape in stored.shapes.items():
            key, start = parse_name(name)
            self._places.setdefault(key, []).append((start, start + math.prod(shape), name))

    def num_steps(self) -> int | None:
        name = self._prefix + STEPS
        return int(self._stored.whole(name)) if name in self._stored.shapes else None

    def shape(self, key: str) -> tuple[int, ...] | None:
        key = self._prefix + key
        return self._shapes.get(key, self._stored.shapes.get(key))

    def read(self, key: str, start: int, numel: int) -> Tensor:
        """Raises `InputError` where the files hold only a part of it."""
        found = torch.empty(numel)
        missing = numel
        for first, end, name in self._places.get(self._prefix + key, ()):
            low, high = max(first, start), min(end, start + numel)
            if low < high:
                found[low - start : high - start] = self._stored.read(name, (low - first, high - first))
                missing -= high - low
        if missing:
            raise InputError(
                f"checkpoint: {missing} elements of {key} are missing; was a rank's file deleted?"
            )
        return found
