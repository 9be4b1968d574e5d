"""Which weights an engine serves, and whether the run has committed them.

The publisher keeps `committed.json` beside the weight files: the newest version that counts. An engine that starts
during a run loads it before it answers its first request.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncrl.errors import ConflictError, InputError
from asyncrl.jsonfile import write_json
from asyncrl.weights.chunks import short_kinds
from asyncrl.weights.files import ShortForm, WeightFile

COMMITTED = "committed.json"


def weight_file_from_json(body: dict[str, Any]) -> WeightFile:
    """Read a `WeightFile` back. Raises KeyError, TypeError, ValueError."""
    forms = {kind: body[kind] for kind in short_kinds() if body.get(kind)}
    return WeightFile(
        version=int(body["version"]),
        path=str(body["path"]),
        checksum=str(body["checksum"]),
        num_bytes=int(body["num_bytes"]),
        epoch=int(body.get("epoch", 0)),
        forms={
            kind: ShortForm(str(form["path"]), int(form["num_bytes"]), str(form["base_checksum"]))
            for kind, form in forms.items()
        },
    )


def write_committed(directory: Path, file: WeightFile) -> None:
    """Record the version that counts, atomically."""
    write_json(directory / COMMITTED, file.to_json())


def read_committed(directory: Path) -> WeightFile | None:
    """Return the version that counts, None before the first. Raises `InputError` for a damaged record."""
    try:
        return weight_file_from_json(json.loads((directory / COMMITTED).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{directory / COMMITTED}: {type(error).__name__}: {error}") from error


class Position:
    """An engine's position in the sequence of weights.

    directory: the folder of weights; empty for an engine that belongs to no run and never has to catch up.
    """

    def __init__(self, directory: str, version: int) -> None:
        self.directory = directory
        self.version = version
        self.file: WeightFile | None = None
        self._caught_up = not directory

    @property
    def epoch(self) -> int:
        """The epoch of the newest weights that were loaded; 0 without any of a run."""
        newest = self.file
        return newest.epoch if newest is not None else 0

    @property
    def checksum(self) -> str:
        """The checksum of those weights; "" without any."""
        return self.file.checksum if self.file is not None else ""

    def missed(self) -> WeightFile | None:
        """Return the weights that must be loaded before anything is served; None if there are none.

        Reads only the record, not the weights. Raises `InputError` when it is damaged.
        """
        if self._caught_up:
            return None
        found = read_committed(Path(self.directory))
        if found is None:
            self._caught_up = True
            return None
        return found

    def repeats(self, file: WeightFile) -> bool:
        """True if exactly these weights are loaded, from wherever.

        Raises `ConflictError` for a file that newer weights have replaced. A restarted trainer increases the epoch, so
        only its own weights may go back to an earlier version.
        """
        newest = self.file
        if newest is None:
            return False
        if file.epoch and (file.epoch, file.version) < (newest.epoch, newest.version):
            raise ConflictError(
                f"weights of version {file.version}, epoch {file.epoch}, come after version {newest.version}, "
                f"epoch {newest.epoch}"
            )
        return replace(file, path=newest.path, forms=newest.forms) == newest

    def moved(self, file: WeightFile) -> None:
        """Record that a file has been loaded."""
        self.file, self.version, self._caught_up = file, file.version, True
