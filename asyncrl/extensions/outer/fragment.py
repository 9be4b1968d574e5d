"""One fragment of the weights that members train together: what has come for its next rounds, and what it is, on disk.

    FRAGMENT/contributions/RUN@VERSION       what has been acknowledged and is in no weights yet

    of weights after a round, complete or absent:
        global.safetensors                       float32 weights by parameter name
        momentum.safetensors                     the outer optimizer's, and what rounding has left
        update.safetensors                       the step to them, as it is sent, in fewer than 32 bits
    round.json beside or above them          which steps of which runs are in them

Whose weights these are and who waits for whom is the method's: `mean`, `pairs`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncrl.disk import sync
from asyncrl.errors import ConflictError
from asyncrl.extensions.outer.messages import Terms
from asyncrl.extensions.outer.tensors import WHOLE_BITS, decode, encode
from asyncrl.jsonfile import read_json

log = logging.getLogger("asyncrl.outer")

GLOBAL, MOMENTUM, UPDATE = "global.safetensors", "momentum.safetensors", "update.safetensors"
ROUND = "round.json"
KEPT_ROUNDS = 2
"""The kept rounds of the same weights: the newest, and those before while they are still being read."""
ACTIVE, LOST, LEFT, REPLACED = "active", "lost", "left", "replaced"
"""States of a member."""
RESIDUAL = "residual/"
BUFFER = "momentum/"

Members = Mapping[str, dict[str, Any]]
"""Number, name and state of each, by run."""
Shapes = Mapping[str, tuple[int, ...]]


class Contribution(NamedTuple):
    version: int
    path: Path
    came_at: float
    """When the run's first contribution to the round came."""


@dataclass(frozen=True)
class Kept:
    """Weights on disk."""

    round: int
    folder: Path
    before: int
    """The round of the weights that they are a step from."""
    contributors: int


class Stepped(NamedTuple):
    """Weights after an outer step."""

    weights: dict[str, np.ndarray]
    kept: dict[str, np.ndarray]
    """The outer optimizer's state."""
    update: bytes | None


class Fragment(ABC):
    """What a method does with a fragment. `members` are those of the service, whose states change outside."""

    def __init__(
        self, number: int, folder: Path, terms: Terms, members: Members, clock: Callable[[], float]
    ) -> None:
        self.number, self.folder, self.terms, self.members, self.clock = number, folder, terms, members, clock
        self.shapes: Shapes = {name: tuple(shape) for name, shape in terms.fragments[number].items()}
        self.open: dict[str, Contribution] = {}
        """What has come and is in no weights yet, by run."""
        (folder / "contributions").mkdir(parents=True, exist_ok=True)

    @property
    @abstractmethod
    def round(self) -> int:
        """The newest round that has weights; -1 before there are any."""

    @abstractmethod
    def begin(self, run: str, weights: Mapping[str, np.ndarray]) -> None:
        """Take the weights to begin with, which `run` has sent."""

    @abstractmethod
    def of(self, run: str) -> Kept | None:
        """Return the newest weights for a member; None before there are any."""

    @abstractmethod
    def at(self, run: str, number: int) -> Path:
        """Return the folder of a member's weights after a round, which may be gone."""

    @abstractmethod
    def counted(self, run: str) -> int:
        """Return the version of a run up to which its steps are in weights; -1 without any."""

    @abstractmethod
    def round_for(self, run: str) -> int:
        """Return the round that what the run has contributed or contributes now is for."""

    @abstractmethod
    def awaited(self) -> list[str]:
        """Return the members without which a round does not close before its time."""

    @abstractmethod
    def close_if_complete(self) -> None:
        """Take the outer steps for which all is there."""

    @abstractmethod
    def close_overdue(self) -> list[tuple[int, str]]:
        """Take the outer steps that have waited long enough, without who is missing; return rounds and those runs."""

    def forget(self, run: str) -> None:  # noqa: B027
        """Drop what is of no use once another run has taken a run's number."""

    def accept(self, run: str, version: int, body: bytes) -> int:
        """Keep a contribution, in place of an earlier one to the same round; return the round. Raises `InputError` for
        a body of other parameters."""
        if self.of(run) is None:
            raise ConflictError(f"fragment {self.number}: there are no weights to begin with yet")
        decode(body, self.shapes, self.terms.bits)
        number = self.round_for(run)
        path = self.folder / "contributions" / f"{run}@{version}"
        write(path, body)
        earlier = self.open.get(run)
        if earlier is not None:
            earlier.path.unlink(missing_ok=True)
        self.open[run] = Contribution(version, path, self.clock() if earlier is None else earlier.came_at)
        return number

    def is_there(self, run: str) -> bool:
        return self.members[run]["state"] == ACTIVE

    def is_overdue(self, contributions: Collection[Contribution]) -> bool:
        first = min(one.came_at for one in contributions)
        return self.clock() >= first + self.terms.wait_timeout_s

    def read_contributions(self, runs: Collection[str]) -> list[dict[str, np.ndarray]]:
        return [decode(self.open[run].path.read_bytes(), self.shapes, self.terms.bits) for run in runs]

    def drop_contributions(self, runs: Collection[str]) -> None:
        for run in runs:
            self.open.pop(run).path.unlink(missing_ok=True)

    def find_contributions(self) -> None:
        """Find what an earlier process has acknowledged."""
        for path in (self.folder / "contributions").iterdir():
            run, _, version = path.name.partition("@")
            known = max(self.counted(run), self.open[run].version if run in self.open else -1)
            if not version.isdigit() or int(version) <= known:
                path.unlink()
                continue
            if run in self.open:
                self.open[run].path.unlink()
            self.open[run] = Contribution(int(version), path, self.clock())

    def read_weights(self, folder: Path) -> dict[str, np.ndarray]:
        return decode((folder / GLOBAL).read_bytes(), self.shapes, WHOLE_BITS)

    def step(
        self,
        folder: Path,
        take: Callable[[str, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    ) -> Stepped:
        """Return weights after a step from those in `folder`: `take(name, weights, momentum buffer)` returns update and
        buffer of a parameter. The update is rounded as members will read it."""
        weights = self.read_weights(folder)
        kept = self._read_state(folder)
        updates: dict[str, np.ndarray] = {}
        for name, own in weights.items():
            updates[name], kept[BUFFER + name] = take(name, own, kept[BUFFER + name])
        body = None
        if self.terms.bits != WHOLE_BITS:
            wanted = {name: one + kept[RESIDUAL + name] for name, one in updates.items()}
            body, updates = encode(wanted, self.terms.bits)
            kept |= {RESIDUAL + name: wanted[name] - updates[name] for name in wanted}
        return Stepped({name: weights[name] - updates[name] for name in weights}, kept, body)

    def _read_state(self, folder: Path) -> dict[str, np.ndarray]:
        """Return the outer optimizer's state beside weights; zeros before the first step."""
        kinds: Sequence[str] = (BUFFER,) if self.terms.bits == WHOLE_BITS else (BUFFER, RESIDUAL)
        named = {kind + name: shape for kind in kinds for name, shape in self.shapes.items()}
        file = folder / MOMENTUM
        if file.exists():
            return decode(file.read_bytes(), named, WHOLE_BITS)
        return {name: np.zeros(shape, np.float32) for name, shape in named.items()}

    def write_round(self, target: Path, stepped: Mapping[str, Stepped], about: Mapping[str, Any]) -> None:
        """Have a round on disk, whole or not at all: weights by their folder's name below `target`, "" for this."""
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        for name, one in stepped.items():
            folder = partial / name
            folder.mkdir(parents=True)
            write(folder / GLOBAL, encode(one.weights, WHOLE_BITS)[0])
            if one.kept:
                write(folder / MOMENTUM, encode(one.kept, WHOLE_BITS)[0])
            if one.update is not None:
                write(folder / UPDATE, one.update)
        write(partial / ROUND, json.dumps(about).encode())
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        sync(self.folder)

    def find_rounds(self) -> list[tuple[Path, dict[str, Any]]]:
        """Return the rounds on disk in their order, with what is known about each."""
        for left in self.folder.glob("*.partial"):
            shutil.rmtree(left, ignore_errors=True)
        return [(path, read_json(path / ROUND) or {}) for path in sorted(self.folder.glob("round-*"))]


def write(path: Path, data: bytes) -> None:
    """Write a file that survives the machine, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
