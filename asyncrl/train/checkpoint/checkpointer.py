"""Training checkpoints: everything a trainer needs to resume, as one unit, written while training continues.

    checkpoints/step-NNNNNN/            a policy in Hugging Face format, see `asyncrl.run.checkpoints`
        training_state/
            training.safetensors        rank 0's part: float32 weights, moments, random state; extra tensors
            training-RANK.safetensors   another rank's part
            training.json               the version (the ledger's position), shapes, extra values
        complete.json                   size and checksum of each file, written last

vLLM loads every safetensors file next to `config.json` as weights, so the training state has a folder of its own. The
checkpoint is written under a temporary name and renamed once `complete.json` is on disk.

Each rank copies and writes its own part, so none holds more of the model than it trains. What is stored are pieces of
weights and moments by parameter name, so another number of ranks or another ZeRO stage can load them. A rank that does
not see rank 0's folder, as on another machine, writes its part to a temporary folder and sends it to rank 0.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from asyncrl.disk import sync
from asyncrl.errors import InputError
from asyncrl.progress import elapsing
from asyncrl.run.checkpoints import (
    MARKER,
    STATE,
    VALUES,
    checkpoint_path,
    complete_checkpoints,
    listed_files,
    state_file,
    state_folder,
)
from asyncrl.train.checkpoint.checkpoint_files import (
    KeptState,
    SentTensors,
    StateFiles,
    open_state,
    own_tensors,
)
from asyncrl.train.checkpoint.copies import CheckpointCopies
from asyncrl.train.checkpoint.extra_state import join, key_of, random_state, set_random_state, split
from asyncrl.train.checkpoint.policy_folder import PolicyShare, gather_policy, write_policy
from asyncrl.train.checkpoint.writers import CheckpointError, Writers
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.full_state import load_state
from asyncrl.weights.chunks import file_checksum

log = logging.getLogger("asyncrl.train")

EXTRA = "extra"
START = "start"
"""The folder of version 0, which the run may go back to. No crash needs it: a run without a checkpoint starts anew."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint held besides weights and optimizer, which have been restored."""

    version: int
    extra: dict[str, Any]
    """As given to `Checkpointer.save`; tuples come back as lists."""


class Checkpointer:
    """Saves every `every` versions (0: only on `save`), keeps the newest `keep` and `pinned`.

    Make the same calls on every rank.

    also_every: saves every so many versions, too, for another reader such as a periodic evaluation.

    others: further engines whose optimizers belong to the run, by name, such as a critic's.

    before_complete: waits until the rest of the steps so far is on disk, such as their trajectories. Called in the
    writing thread; if it raises, the checkpoint stays incomplete.

    copies: where else checkpoints are. writers: of the ranks' writing threads, with which the copies are made.
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
        copies: Sequence[CheckpointCopies] = (),
        writers: Writers | None = None,
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.base_model = base_model
        self.periods = [period for period in (every, also_every) if period]
        self.keep = keep
        self.before_complete = before_complete
        self.copies = list(copies)
        self._newest = -1
        """The newest of the versions that were saved or restored."""
        self._started = (folder / START / MARKER).is_file()
        """Whether the start has been saved."""
        self.pinned: int | None = None
        """A version that is kept although it is old."""
        self.write_s = 0.0
        """How long the newest background write took."""
        self._writers = writers if writers is not None else Writers(engine.rank, engine.num_ranks)
        self._trained = {"": engine} | {f"{name}:": other for name, other in (others or {}).items()}
        """The engines whose optimizers are kept, by the prefix of their tensors' names."""
        self._writer: threading.Thread | None = None
        self._failure: Exception | None = None
        self._failures: dict[str, Exception | None] = {}
        """Why the newest states could not be written elsewhere, by the names of the copies."""

    @property
    def error(self) -> str:
        """Why the newest write failed, "" if it did not."""
        failures = {"": self._failure} | {f"in {name}: ": one for name, one in self._failures.items()}
        texts = [f"{where}{type(one).__name__}: {one}" for where, one in failures.items() if one is not None]
        return "; ".join(texts)

    def due(self, version: int) -> bool:
        """Whether `save_due` saves a version anywhere."""
        return self.due_on_disk(version) or bool(self._due_elsewhere(version))

    def due_on_disk(self, version: int) -> bool:
        """Whether it saves a version in its folder."""
        return any(version % period == 0 for period in self.periods)

    def _due_elsewhere(self, version: int) -> list[CheckpointCopies]:
        return [copy for copy in self.copies if copy.due(version)]

    def save_start(self, extra: Mapping[str, Any]) -> None:
        """Save version 0 to go back to, until a later version is `pinned`; nothing where no version is due."""
        if self.periods:
            self._started = True
            self._save(0, extra, self.folder / START)

    def save_due(
        self, version: int, extra: Mapping[str, Any], after: Callable[[], object] = lambda: None
    ) -> float:
        """Do as `save` does where a version is due: in the folder, elsewhere, or both. A collective."""
        target = None
        if self.due_on_disk(version):
            self._newest, target = version, checkpoint_path(self.folder, version)
        return self._save(version, extra, target, after, self._due_elsewhere(version))

    def save(
        self, version: int, extra: Mapping[str, Any], after: Callable[[], object] = lambda: None
    ) -> float:
        """Copy the state and start writing it; return the seconds training was blocked. A collective.

        extra: nested tensors, numbers and strings; rank 0's are kept. after: waits, in rank 0's writing thread, for
        what the checkpoint may not be complete before; if it raises, the checkpoint stays incomplete. A write that
        fails on any rank, as on a full disk, is logged and leaves earlier checkpoints as they are.
        """
        self._newest = version
        return self._save(version, extra, checkpoint_path(self.folder, version), after)

    def _save(
        self,
        version: int,
        extra: Mapping[str, Any],
        target: Path | None,
        after: Callable[[], object] = lambda: None,
        elsewhere: Sequence[CheckpointCopies] = (),
    ) -> float:
        start = time.perf_counter()
        self._join()
        policy = gather_policy(self.engine, copy=True) if target is not None else None
        tensors = random_state(self.engine.rank)
        shapes: dict[str, list[int]] = {}
        for prefix, engine in self._trained.items():
            own, own_shapes = own_tensors(engine, prefix)
            tensors |= own
            shapes |= own_shapes
        values = {"version": version, "shapes": shapes}
        if self.engine.rank == 0:
            values["extra"] = split(dict(extra), tensors, EXTRA)

        def write() -> None:
            begun = time.perf_counter()
            for copy in elsewhere:
                self._write_elsewhere(copy, tensors, values, after)
            if target is not None and policy is not None:
                with elapsing(f"writing the checkpoint of version {version}"):
                    self._write(target, policy, tensors, values, after)
            self.write_s = time.perf_counter() - begun

        self._writer = threading.Thread(target=write, name="checkpoint")
        self._writer.start()
        return time.perf_counter() - start

    def load(self, path: Path) -> Restored:
        """Restore weights, moments and random state from a checkpoint; return the rest. Call on every rank.

        Raises `InputError` when it was made by another model.
        """
        state = state_folder(path)
        restored = self._restore(state, open_state(self.engine, state, self._trained))
        self._newest = restored.version
        return restored

    def newest_copy(self, at_most: int) -> tuple[int, int] | None:
        """Return the newest version up to `at_most` whose state is elsewhere, and in which of the copies. On rank 0."""
        found = [(copy.newest(at_most), place) for place, copy in enumerate(self.copies)]
        return max(((version, place) for version, place in found if version is not None), default=None)

    def load_copy(self, version: int, place: int) -> Restored | None:
        """Do as `load` does from one of the copies; None, with nothing changed, if a part is lost there."""
        copy = self.copies[place]
        opened = copy.open(version, self.engine, self._trained)
        if opened is None:
            return None
        restored = self._restore(*opened)
        # What can be gone back to is on disk.
        older = (found for found, _ in complete_checkpoints(self.folder) if found <= version)
        self._newest = max(older, default=-1)
        if self.engine.rank == 0:
            log.warning("version %d was restored from %s", version, copy.where)
        return restored

    def forget_copies(self, but: int) -> None:
        """Remove the states of all versions but one that are elsewhere. A collective."""
        for copy in self.copies:
            copy.forget(but)

    def _restore(self, state: Path, stored: StateFiles | SentTensors) -> Restored:
        """Restore what is in a folder of rank 0."""
        first = self.engine.rank == 0
        values = self.engine.broadcast(json.loads((state / VALUES).read_text()) if first else None)
        for prefix, engine in self._trained.items():
            load_state(engine, KeptState(stored, values.get("shapes", {}), prefix))
        if key_of(self.engine.rank) in stored.shapes:
            set_random_state(stored.whole(key_of(self.engine.rank)))
        extra = {name: stored.whole(name) for name in stored.shapes if name.startswith(EXTRA)}
        return Restored(values["version"], join(values["extra"], extra))

    def versions(self) -> list[int]:
        """Return the versions that can be gone back to, newest first. For rank 0.

        The newest of all is not among them, since it may still be being written: what is returned must not depend on
        how fast that is.
        """
        found = [version for version, _ in complete_checkpoints(self.folder) if version < self._newest]
        return [*found, 0] if self._started else found

    def go_back(self, version: int) -> dict[str, Any] | None:
        """Restore a kept version and return its `extra`; None, with a line in the log, if damaged. A collective."""
        self._join()
        newest, whole = self._newest, False
        path = checkpoint_path(self.folder, version) if version else self.folder / START
        if self.engine.rank == 0:
            try:
                check_whole(path)
                whole = True
            except InputError as error:
                log.error("%s", error)
        if not self.engine.broadcast(whole):
            return None
        extra = self.load(path).extra
        self._newest = newest
        return extra

    def wait(self) -> None:
        """Wait for a write in progress. Raises the error that ended it."""
        self._join()
        if self._failure is not None:
            raise self._failure

    def finish(self, version: int, extra: Mapping[str, Any]) -> None:
        """Save the run's last version if it has not been, and wait until it is on disk. A collective.

        Raises the error that kept it from being written.
        """
        self._join()
        # Other ranks may not see the folder: they may be on other machines.
        saved = (checkpoint_path(self.folder, version) / MARKER).is_file()
        if not self.engine.broadcast(saved):
            self.save(version, extra)
        self.wait()
        self.pinned = None
        if self.engine.rank == 0:
            self._remove_old(version)
            shutil.rmtree(self.folder / START, ignore_errors=True)
        self.engine.barrier()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write(
        self,
        target: Path,
        policy: PolicyShare,
        tensors: dict[str, Tensor],
        values: dict[str, Any],
        after: Callable[[], object],
    ) -> None:
        """Write one checkpoint with the other ranks' threads."""
        version = values["version"]
        partial = target.with_name(target.name + ".partial")
        first = self.engine.rank == 0
        try:
            # Beside the checkpoints: what a killed trainer leaves there goes with the run, and is replaced by the next.
            scratch = partial.with_name(f"rank-{self.engine.rank}.partial")
            try:
                folder = self._choose_folder(partial, scratch)
                listed = self._write_parts(partial, folder, policy, tensors, values)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
            self._writers.together(
                lambda: self._complete(partial, target, version, listed, after) if first else None
            )
            self._failure = None
        except Exception as error:
            # A full or broken disk costs one checkpoint, not the run.
            self._failure = error
            log.error("checkpoint of version %d: %s: %s", version, type(error).__name__, error)
            if first:
                shutil.rmtree(partial, ignore_errors=True)

    def _write_elsewhere(
        self,
        copy: CheckpointCopies,
        tensors: dict[str, Tensor],
        values: dict[str, Any],
        after: Callable[[], object],
    ) -> None:
        """Write one version's state into one of the copies with the other ranks' threads."""

        def committed() -> None:
            after()
            self.before_complete()

        try:
            copy.write(values["version"], tensors, values, committed)
            self._failures[copy.name] = None
        except Exception as error:
            # The run has its checkpoints on disk.
            self._failures[copy.name] = error
            log.error(
                "%s checkpoint of version %d: %s: %s",
                copy.name,
                values["version"],
                type(error).__name__,
                error,
            )

    def _choose_folder(self, partial: Path, scratch: Path) -> Path:
        """Return where this rank writes: rank 0's new folder `partial`, or `scratch` where it does not see that."""
        first, mark = self.engine.rank == 0, f"mark-{uuid.uuid4().hex}"
        chosen = self._writers.together(lambda: _new_folder(partial, mark) if first else "")[0]
        seen = first or (partial / chosen).is_file()
        self._writers.together(lambda: None)  # all have looked
        (partial / chosen).unlink(missing_ok=True)
        if not seen:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
        return partial if seen else scratch

    def _write_parts(
        self, partial: Path, folder: Path, policy: PolicyShare, tensors: dict[str, Tensor], values: Any
    ) -> dict[str, list[Any]]:
        """Bring all ranks' files into rank 0's folder; return size and checksum of those of the other ranks."""
        rank = self.engine.rank

        def write() -> dict[str, Any]:
            (folder / STATE).mkdir(exist_ok=True)
            weights = write_policy(self.engine, policy, folder, self.base_model)
            state = folder / STATE / state_file(rank)
            save_file(tensors, str(state))
            if rank == 0:
                (folder / STATE / VALUES).write_text(json.dumps(values))
                return {"files": {}, "here": True}
            files = {str(file.relative_to(folder)): _entry(file) for file in (*weights, state)}
            return {"files": files, "here": folder == partial}

        parts = self._writers.together(write)

        def fetch() -> None:
            for source, part in enumerate(parts):
                for name in () if part["here"] else part["files"]:
                    if rank == 0:
                        self._writers.receive(partial / name, source)
                    elif rank == source:
                        self._writers.send(folder / name)

        self._writers.together(fetch)
        return {name: entry for part in parts for name, entry in part["files"].items()}

    def _complete(
        self,
        partial: Path,
        target: Path,
        version: int,
        listed: dict[str, list[Any]],
        after: Callable[[], object],
    ) -> None:
        """Make what has been written a checkpoint."""
        _seal(partial, listed)
        after()
        self.before_complete()
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        sync(target.parent)
        if target.name == START:
            return
        self._remove_old(version)
        for copy in self.copies:
            try:
                copy.put(target, version, self.keep)
            except Exception as error:
                message = f"{target.name} is complete, but could not be put into {copy.where}: {error}"
                raise CheckpointError(message) from error

    def find(self, at_most: int) -> tuple[int, Path] | None:
        """Return the newest usable checkpoint of a version up to `at_most`. For rank 0.

        It is fetched from the copies, if one has a newer one than the folder.
        """
        for copy in self.copies:
            copy.fetch(self.folder, at_most)
        return newest_usable(self.folder, at_most)

    def _remove_old(self, newest: int) -> None:
        kept = [found for found in complete_checkpoints(self.folder) if found[0] <= newest]
        for version, path in kept[self.keep :]:
            if version != self.pinned:
                shutil.rmtree(path, ignore_errors=True)
        if self.pinned:
            shutil.rmtree(self.folder / START, ignore_errors=True)


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
        listed = listed_files(path, (path / MARKER).read_bytes())
        for name, (num_bytes, checksum) in listed.items():
            file = path / name
            if file.stat().st_size != num_bytes or file_checksum(file) != checksum:
                raise InputError(f"checkpoint {path}: {name} is damaged")
    except (OSError, ValueError) as error:
        raise InputError(f"checkpoint {path}: {error}") from error


def _new_folder(folder: Path, mark: str) -> str:
    """Make a folder anew, with an empty file in it by which others know it; return that file's name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / mark).touch()
    return mark


def _seal(folder: Path, listed: Mapping[str, list[Any]]) -> None:
    """Flush the folder's files to disk, then the marker that lists them with those that are `listed` already."""
    entries = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(file.relative_to(folder))
        entries[name] = listed.get(name) or _entry(file)
        sync(file)
    for inner in sorted(p for p in folder.rglob("*") if p.is_dir()):
        sync(inner)
    marker = folder / MARKER
    marker.write_text(json.dumps(entries, indent=1))
    sync(marker)
    sync(folder)


def _entry(file: Path) -> list[Any]:
    """Return what the marker says of a file: size and checksum."""
    return [file.stat().st_size, file_checksum(file)]
