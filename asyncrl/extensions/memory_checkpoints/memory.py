"""Checkpoints in the memory of the trainer's machines: what a rank that dies costs is the steps since the newest.

    memory-checkpoints/step-NNNNNN/     in the run's folder of weights, by default in /dev/shm, on each machine
        training-RANK.safetensors       what this machine's ranks keep, as a checkpoint on disk has it
        copies/                         the same of the ranks of the machine before it
        training.json                   on rank 0's machine: the version, shapes, extra values, and the ranks' layout
        complete.json                   there, too: size and checksum of all ranks' files; written last

The files outlive the processes that wrote them. With several machines each one's part is also on the next, as in
[GEMINI](https://doi.org/10.1145/3600006.3613145): after the loss of one that is not rank 0's, all parts are still
there. Only what rank 0's list names counts: a machine that was away may have kept a version that the run has gone
back from since.

Another number of ranks, or as many on another number of machines, reads the same parts, brought together on rank 0's
machine: so a run goes on without a lost machine, and with one that has come back.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import save_file
from torch import Tensor

from asyncrl.errors import AsyncRLError
from asyncrl.extensions.memory_checkpoints.own_parts import open_own_parts
from asyncrl.extensions.memory_checkpoints.settings import MemoryConfig
from asyncrl.jsonfile import read_json, write_json
from asyncrl.run.checkpoints import MARKER, VALUES, checkpoint_path, state_file
from asyncrl.train.checkpoint.checkpoint_files import SentTensors, StateFiles, open_state
from asyncrl.train.checkpoint.copies import CheckpointCopies, CopiesContext
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.weights.chunks import file_checksum

log = logging.getLogger("asyncrl.train")

FOLDER = "memory-checkpoints"
COPIES = "copies"
LAYOUT = "layout"


class MemoryCheckpoints(CheckpointCopies):
    """The newest checkpoint in memory; another one while it is written.

    folder: this machine's. writers: of the ranks' writing threads. every: versions between two; 0 for none. machines:
    over which consecutive ranks are spread evenly; one folder serves all ranks of a machine. stage: ZeRO's; what was
    written under another one is not read.
    """

    name: ClassVar[str] = "memory"
    where = "the memory of the trainer's machines"

    def __init__(self, folder: Path, writers: Writers, every: int, machines: int = 1, stage: int = 0) -> None:
        self.folder = folder
        self.every = every
        self.machines = machines
        self.rank, self.num_ranks = writers.rank, writers.num_ranks
        self._writers = writers
        self._layout = {"ranks": self.num_ranks, "machines": machines, "stage": stage}
        self._distance = self.num_ranks // machines
        """Between a rank and the one on the next machine that has a copy of its part."""

    def due(self, version: int) -> bool:
        return bool(self.every) and version % self.every == 0

    def path(self, version: int) -> Path:
        return checkpoint_path(self.folder, version)

    def write(
        self,
        version: int,
        tensors: Mapping[str, Tensor],
        values: Mapping[str, Any],
        before_complete: Callable[[], object] = lambda: None,
    ) -> None:
        """Write one version and remove older ones, with the other ranks' threads.

        before_complete: waits, on rank 0, for what must be on disk before the version counts. Raises what it raises,
        and what a full memory does; the earlier version stays then.
        """
        folder = self.path(version)
        try:
            parts = self._writers.together(lambda: self._write_own(folder, tensors, values))
            self._writers.together(lambda: self._copy_to_neighbour(folder))
            listed = {name: entry for part in parts for name, entry in part.items()}

            def complete() -> None:
                before_complete()
                write_json(folder / MARKER, listed)

            self._writers.together(lambda: complete() if self.rank == 0 else None)
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        for other, path in self._kept():
            # Another rank of this machine may be writing the next one already.
            if other < version:
                shutil.rmtree(path, ignore_errors=True)

    def newest(self, at_most: int) -> int | None:
        """Return the newest version up to `at_most` that was written whole under the same ZeRO stage; for rank 0."""
        for version, path in self._kept():
            written = self._written(version)
            same_stage = written is not None and written["stage"] == self._layout["stage"]
            if version <= at_most and same_stage and (path / MARKER).is_file():
                return version
        return None

    def open(
        self, version: int, engine: TrainEngine, trained: Mapping[str, TrainEngine]
    ) -> tuple[Path, StateFiles | SentTensors] | None:
        """See `CheckpointCopies`."""
        if not self.bring(version):
            return None
        path = self.path(version)
        apart = self.machines > 1 and not self.brought_together(version)
        return path, (open_own_parts if apart else open_state)(engine, path, trained)

    def brought_together(self, version: int) -> bool:
        """True if `bring` has all parts in rank 0's folder: other ranks wrote them. A collective."""
        others = self.rank == 0 and self._written(version) not in (None, self._layout)
        return bool(self._writers.tell({"others": others})[0]["others"])

    def bring(self, version: int) -> bool:
        """Have each rank's own file in its folder, from its neighbour where it is lost or damaged; in rank 0's the
        files of all ranks where there were others. A collective.

        Return False, with a line in rank 0's log, where a part is nowhere.
        """
        try:
            if self.brought_together(version):
                moved = self._bring_together(version)
            else:
                moved = [state_file(rank) for rank in self._bring_own(version)]
        except (AsyncRLError, OSError) as error:
            if self.rank == 0:
                log.error("memory checkpoint of version %d: %s", version, error)
            return False
        if moved and self.rank == 0:
            log.warning(
                "memory checkpoint of version %d: %s came from another machine", version, ", ".join(moved)
            )
        return True

    def _bring_own(self, version: int) -> list[int]:
        """Return the ranks whose parts came from their neighbours. Raises `OSError` where one is lost."""
        path = self.path(version)
        listed = self._writers.tell((read_json(path / MARKER) or {}) if self.rank == 0 else {})[0]
        own, copy = path / state_file(self.rank), path / COPIES / state_file(self._before)
        values_there = self.rank != 0 or _whole(path / VALUES, listed)
        there = self._writers.tell(
            {
                "own": _whole(own, listed) and values_there,
                "copy": self.machines > 1 and _whole(copy, listed),
            }
        )
        lost = [rank for rank in range(self.num_ranks) if not there[rank]["own"]]

        def fetch() -> None:
            for rank in lost:
                if self.rank == self._after(rank):
                    self._writers.send(copy, rank)
                elif self.rank == rank:
                    path.mkdir(parents=True, exist_ok=True)
                    self._writers.receive(own, self._after(rank))
            if self.rank in lost and not (_whole(own, listed) and values_there):
                raise OSError(f"{own} is not what was written")

        if gone := [rank for rank in lost if not there[self._after(rank)]["copy"]]:
            raise OSError(f"the parts of ranks {gone} are lost")
        self._writers.together(fetch)
        return lost

    def _bring_together(self, version: int) -> list[str]:
        """Return the parts that rank 0's machine did not have. Raises `OSError` where one is lost."""
        path = self.path(version)
        first = self.rank == 0
        listed = self._writers.tell((read_json(path / MARKER) or {}) if first else {})[0]
        names = sorted(name for name in listed if name != VALUES)
        there = {name: str(file) for name in names if (file := _found(path, name, listed))}
        if first and _whole(path / VALUES, listed):
            there[VALUES] = str(path / VALUES)
        found = self._writers.tell(there)
        holders = {
            name: [rank for rank in range(self.num_ranks) if name in found[rank]] for name in (VALUES, *names)
        }
        if gone := [name for name, ranks in holders.items() if not ranks]:
            raise OSError(f"lost: {', '.join(gone)}")
        has = {name: holders[name][0] for name in names}

        def fetch() -> None:
            for name, source in has.items():
                if first and source == 0:
                    Path(there[name]).replace(path / name)
                elif first:
                    self._writers.receive(path / name, source)
                elif self.rank == source:
                    self._writers.send(Path(there[name]), 0)
            if first and not all(_whole(path / name, listed) for name in names):
                raise OSError(f"{path} is not what was written")

        self._writers.together(fetch)
        return [name for name, source in has.items() if source]

    def _written(self, version: int) -> dict[str, Any] | None:
        """Return the layout of the ranks that wrote a version, where it is known here."""
        return (read_json(self.path(version) / VALUES) or {}).get(LAYOUT)

    def forget(self, but: int | None = None) -> None:
        """Remove all versions but one, on all machines. A collective."""
        for version, path in self._kept():
            if version != but:
                shutil.rmtree(path, ignore_errors=True)
        self._writers.together(lambda: None)

    @property
    def _before(self) -> int:
        """The rank of whose part this one has a copy."""
        return (self.rank - self._distance) % self.num_ranks

    def _after(self, rank: int) -> int:
        """Return the rank that has a copy of another's part."""
        return (rank + self._distance) % self.num_ranks

    def _write_own(
        self, folder: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / state_file(self.rank)]
        save_file(dict(tensors), str(files[0]))
        if self.rank == 0:
            files.append(folder / VALUES)
            files[1].write_text(json.dumps({**values, LAYOUT: self._layout}))
        return {file.name: [file.stat().st_size, file_checksum(file)] for file in files}

    def _copy_to_neighbour(self, folder: Path) -> None:
        """Exchange parts with the machines before and after this one. Where one move fails, the other is made
        nevertheless: another rank waits for it."""
        if self.machines == 1:
            return
        failure: OSError | None = None
        copies = folder / COPIES
        try:
            copies.mkdir(exist_ok=True)
        except OSError as error:
            failure = error
        moves = [
            lambda: self._writers.send(folder / state_file(self.rank), self._after(self.rank)),
            lambda: self._writers.receive(copies / state_file(self._before), self._before),
        ]
        if self.rank // self._distance % 2:
            # Else all of them would send, and none receive.
            moves.reverse()
        for move in moves:
            try:
                move()
            except OSError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _kept(self) -> list[tuple[int, Path]]:
        """Return `(version, path)` of what is here, whole or not, newest first."""
        found = [(path.name.removeprefix("step-"), path) for path in self.folder.glob("step-*")]
        return sorted(((int(digits), path) for digits, path in found if digits.isdigit()), reverse=True)


def in_memory(context: CopiesContext) -> MemoryCheckpoints:
    """Return those of a run, beside its weights, in shared memory."""
    every = context.config.section(MemoryConfig).memory_checkpoint_every
    folder, stage = context.weights_dir / FOLDER, context.engine.stage
    return MemoryCheckpoints(folder, context.writers, every, context.machines, stage)


def _found(path: Path, name: str, listed: Mapping[str, Any]) -> Path | None:
    """Return where a machine has a rank's part whole."""
    return next((file for file in (path / name, path / COPIES / name) if _whole(file, listed)), None)


def _whole(file: Path, listed: Mapping[str, Any]) -> bool:
    """True where a file has the size and the checksum that a list says."""
    entry = listed.get(file.name)
    try:
        return entry == [file.stat().st_size, file_checksum(file)]
    except OSError:
        return False
