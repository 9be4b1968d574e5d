"""Training checkpoints: everything a trainer needs to resume, as one unit, written while training continues.

    checkpoints/step-NNNNNN/            a policy in Hugging Face format, see `asyncrl.run.checkpoints`
        training_state/
            training.safetensors        float32 weights, Adam's moments, extra tensors, every rank's random state
            training.json               the version (the ledger's position) and extra values
        complete.json                   size and checksum of each file, written last

vLLM loads every safetensors file next to `config.json` as weights, so the training state has a folder of its own. The
checkpoint is written under a temporary name and renamed once `complete.json` is on disk. Weights and moments are whole
tensors by parameter name, so another number of ranks or another ZeRO stage can load them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from asyncrl.errors import InputError
from asyncrl.run.checkpoints import (
    MARKER,
    STATE,
    TENSORS,
    VALUES,
    checkpoint_path,
    complete_checkpoints,
    state_folder,
)
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.full_state import gather_state, load_state
from asyncrl.train.nested_state import join, split
from asyncrl.train.policy_folder import gather_policy, write_policy
from asyncrl.train.random_state import gather_random_state, set_random_state
from asyncrl.weights.chunks import file_checksum

log = logging.getLogger("asyncrl.train")

EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint held besides weights and optimizer, which have been restored."""

    version: int
    extra: dict[str, Any]
    """As given to `Checkpointer.save`; tuples come back as lists."""


class Checkpointer:
    """Saves every `every` versions (0: only on `save`) and keeps the newest `keep`. Make the same calls on every rank.

    also_every: saves every so many versions, too, for another reader such as a periodic evaluation.

    others: further engines whose optimizers belong to the run, by name, such as a critic's.

    before_complete: waits until the rest of the steps so far is on disk, such as their trajectories. Called in the
    writing thread; if it raises, the checkpoint stays incomplete.
    """

    def __init__(
        self,
        folder: Path,
        engine: TrainEngine,
        base_model: str,
        every: int = 0,
        keep: int = 2,
        also_every: int = 0,
        others: Mapping[str, TrainEngine] | None = None,
        before_complete: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.base_model = base_model
        self.periods = [period for period in (every, also_every) if period]
        self.keep = keep
        self.others = dict(others or {})
        self.before_complete = before_complete
        self.write_s = 0.0
        """How long the newest background write took."""
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None

    @property
    def error(self) -> str:
        """Why the newest write failed, "" if it did not. Known on rank 0."""
        return f"{type(self._failure).__name__}: {self._failure}" if self._failure is not None else ""

    def due(self, version: int) -> bool:
        return any(version % period == 0 for period in self.periods)

    def save(self, version: int, extra: Mapping[str, Any]) -> float:
        """Copy the state and start writing it; return the seconds training was blocked. A collective.

        extra: nested tensors, numbers and strings; rank 0's are kept. A write that fails, as on a full disk, is
        logged and leaves earlier checkpoints as they are.
        """
        start = time.perf_counter()
        self._join()
        policy = gather_policy(self.engine, copy=True)
        tensors = gather_state(self.engine) | gather_random_state(self.engine)
        for name, other in self.others.items():
            tensors |= {f"{name}:{key}": tensor for key, tensor in gather_state(other).items()}
        if self.engine.rank == 0:
            values = split(dict(extra), tensors, EXTRA)
            self._writer = threading.Thread(
                target=self._write, args=(version, policy, tensors, values), name="checkpoint"
            )
            self._writer.start()
        return time.perf_counter() - start

    def load(self, path: Path) -> Restored:
        """Restore weights, moments and random state from a checkpoint; return the rest. Call on every rank.

        Raises `InputError` when it was made by another model.
        """
        tensors, values = self._read(path)
        load_state(self.engine, tensors)
        for name, other in self.others.items():
            prefix = f"{name}:"
            own = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
            load_state(other, own)
        set_random_state(self.engine, tensors)
        return Restored(values["version"], join(values["extra"], tensors))

    def _read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return tensors and values of a checkpoint on every rank. A collective.

        They are read there, or sent by rank 0 where another rank does not see the folder, as on another machine.
        """
        state, engine = state_folder(path), self.engine
        seen = torch.tensor([int((state / VALUES).is_file())], device=engine.device)
        engine.all_reduce(seen, "min")
        if int(seen):
            return load_file(str(state / TENSORS)), json.loads((state / VALUES).read_text())
        first = engine.rank == 0
        tensors = load_file(str(state / TENSORS)) if first else {}
        values = engine.broadcast(json.loads((state / VALUES).read_text()) if first else None)
        # One by one, since a message is copied twice.
        for name in engine.broadcast(sorted(tensors)):
            tensors[name] = load(engine.broadcast_bytes(save({name: tensors[name]}) if first else None))[name]
        return tensors, values

    def wait(self) -> None:
        """Wait for a write in progress. Raises the error that ended it, on rank 0."""
        self._join()
        if self._failure is not None:
            raise self._failure

    def finish(self, version: int, extra: Mapping[str, Any]) -> None:
        """Save the run's last version if it has not been, and wait until it is on disk. A collective.

        Raises the error that kept it from being written, on rank 0.
        """
        self._join()
        # Other ranks may not see the folder: they may be on other machines.
        saved = (checkpoint_path(self.folder, version) / MARKER).is_file()
        if not self.engine.broadcast(saved):
            self.save(version, extra)
        self.wait()
        self.engine.barrier()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write(
        self, version: int, policy: dict[str, Tensor], tensors: dict[str, Tensor], values: Any
    ) -> None:
        start = time.perf_counter()
        target = checkpoint_path(self.folder, version)
        partial = target.with_name(target.name + ".partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            write_policy(self.engine, policy, partial, self.base_model)
            state = partial / STATE
            state.mkdir()
            save_file(tensors, str(state / TENSORS))
            (state / VALUES).write_text(json.dumps({"version": version, "extra": values}))
            _seal(partial)
            self.before_complete()
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            _sync(target.parent)
            self._remove_old(version)
            self._failure = None
        except Exception as error:
            # A full or broken disk costs one checkpoint, not the run.
            self._failure = error
            shutil.rmtree(partial, ignore_errors=True)
            log.error("checkpoint of version %d not written: %s: %s", version, type(error).__name__, error)
        self.write_s = time.perf_counter() - start

    def _remove_old(self, newest: int) -> None:
        older = [path for version, path in complete_checkpoints(self.folder) if version <= newest]
        for path in older[self.keep :]:
            shutil.rmtree(path, ignore_errors=True)


def newest_usable(folder: Path, at_most: int) -> tuple[int, Path] | None:
    """Return the newest checkpoint of a version up to `at_most` whose files are whole; damaged ones are logged."""
    for version, path in complete_checkpoints(folder):
        if version > at_most:
            continue
        try:
            check_whole(path)
        except InputError as error:
            log.error("%s; trying the one before", error)
            continue
        return version, path
    return None


def check_whole(path: Path) -> None:
    """Compare a checkpoint's files with its marker. Raises `InputError` naming the file that differs."""
    try:
        listed = json.loads((path / MARKER).read_text())
        for name, (num_bytes, checksum) in listed.items():
            file = path / name
            if file.stat().st_size != num_bytes or file_checksum(file) != checksum:
                raise InputError(f"checkpoint {path}: {name} is damaged")
    except (OSError, ValueError) as error:
        raise InputError(f"checkpoint {path}: {error}") from error


def _seal(folder: Path) -> None:
    """Flush the folder's files to disk, then the marker that lists them."""
    listed = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        listed[str(file.relative_to(folder))] = [file.stat().st_size, file_checksum(file)]
        _sync(file)
    for inner in sorted(p for p in folder.rglob("*") if p.is_dir()):
        _sync(inner)
    marker = folder / MARKER
    marker.write_text(json.dumps(listed, indent=1))
    _sync(marker)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
