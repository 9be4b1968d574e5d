"""Adapters of past versions that engines keep beside the newest one, as members of a population of opponents.

    publisher: weights of a version are written -> `members.json` names those that are kept with it
    engine:    the version is loaded            -> so are the members that it lacks, and others are unloaded

Their files stay in the folder of weights. That is removed with the processes of a run, so there is a copy of each in
the run's own folder, of which a resumed run's publisher restores them. Version 0 has no adapter and needs no file.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from asyncrl.errors import InputError, UnavailableError
from asyncrl.jsonfile import write_json
from asyncrl.weights.chunks import parts_checksum
from asyncrl.weights.files import WeightFile, weights_path
from asyncrl.weights.position import weight_file_from_json

MEMBERS = "members.json"


def read_members(directory: str | Path) -> list[WeightFile] | None:
    """Return the members' files, None for a run without a population. Raises `InputError` for a damaged record."""
    path = Path(directory) / MEMBERS
    try:
        return [weight_file_from_json(one) for one in json.loads(path.read_text())]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: {type(error).__name__}: {error}") from error


class Members:
    """The publisher's side.

    directory: the folder of weights. store: where the copies are. served: which versions engines hold that serve one.
    """

    def __init__(
        self, directory: str | Path, store: str | Path, served: Callable[[int], Collection[int]]
    ) -> None:
        self.directory, self.store, self.served = Path(directory), Path(store), served

    def note(self, file: WeightFile) -> None:
        """Record the members that are served with `file`, the newest version; keep a copy of it if it is one.

        What later versions have left, which a restarted trainer has gone back from, is forgotten. Raises
        `UnavailableError` if the disk cannot be written.
        """
        wanted = set(self.served(file.version))
        try:
            self.store.mkdir(parents=True, exist_ok=True)
            for path in self.store.glob("weights-*.safetensors"):
                if _version(path) not in wanted or _version(path) >= file.version:
                    path.unlink(missing_ok=True)
            if file.version in wanted:
                _copy(Path(file.path), weights_path(self.store, file.version))
            before = file.version - 1
            if before in wanted and (path := weights_path(self.directory, before)).exists():
                # An exploiter's version becomes a member when the next one is made.
                _copy(path, weights_path(self.store, before))
            found = [self._restored(version, file) for version in sorted(wanted) if version < file.version]
            members = [one for one in found if one is not None]
            write_json(self.directory / MEMBERS, [one.to_json() for one in members])
        except OSError as error:
            raise UnavailableError(f"members with version {file.version}: {error}") from error

    def _restored(self, version: int, newest: WeightFile) -> WeightFile | None:
        """Return the file of a member; None for the base model, which has none."""
        path, copy = weights_path(self.directory, version), weights_path(self.store, version)
        if not copy.exists():
            return None
        # Of the folder of weights only what this publisher has written is known to be of the run's present history.
        if not path.exists() or parts_checksum(path) != parts_checksum(copy):
            _copy(copy, path)
        return WeightFile(version, str(path), parts_checksum(path), path.stat().st_size, newest.epoch)


def _version(path: Path) -> int:
    digits = path.stem.removeprefix("weights-")
    return int(digits) if digits.isdigit() else -1


def _copy(source: Path, target: Path) -> None:
    """Copy a file so that the target is there as a whole or not at all."""
    partial = target.with_suffix(f".partial-{os.getpid()}")
    try:
        shutil.copyfile(source, partial)
        os.replace(partial, target)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
