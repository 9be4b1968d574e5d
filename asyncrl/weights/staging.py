"""Where an engine keeps weight files of its own: what it received, until a newer version is loaded.

The folder is below the engine's folder of weights, so on one machine in shared memory. All ranks of the engine map the
same file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from dataclasses import replace
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.weights.chunks import SHORT_KINDS, WHOLE
from asyncrl.weights.files import WeightFile, weights_path

PREFIX = "staged-"
INCOMPLETE = ".fetching"
"""Follows the name of a file that is being fetched or read."""


class Staging:
    """The files of one engine process. folder: its folder of weights. pid: of the process, this one by default."""

    def __init__(self, folder: str, pid: int | None = None) -> None:
        self._parent = Path(folder)
        self._folder = self._parent / f"{PREFIX}{socket.gethostname()}-{os.getpid() if pid is None else pid}"

    def path(self, file: WeightFile) -> Path:
        """Return where this version of this life of the trainer belongs."""
        return self.path_of(file.epoch, file.version)

    def path_of(self, epoch: int, version: int) -> Path:
        """Return where a version of a life of the trainer belongs."""
        return weights_path(self._folder / str(epoch), version)

    def make_room(self, file: WeightFile, kind: str = WHOLE) -> Path:
        """Reserve memory for a kind of a file; return the path. Raises `InputError` if there is not enough."""
        self._remove_orphans()
        return self._reserve(self.complete_path(file, kind), file.source(kind)[1])

    def fetch_room(self, file: WeightFile, kind: str, num_bytes: int) -> tuple[Path, bool]:
        """Reserve memory for what is fetched; return the path and whether it may hold a part of it already.

        That part is from an attempt of this engine, or of one of this machine that was killed. Raises `InputError`.
        """
        path = self.incomplete_path(file, kind)
        names = [one.relative_to(self._folder) for one in (path, self.complete_path(file, kind))]
        for found in [folder / name for folder in (self._folder, *self._orphans()) for name in names]:
            with contextlib.suppress(OSError):
                if found.stat().st_size == num_bytes:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(found, path)
                    self.complete_path(file, kind).unlink(missing_ok=True)
                    self._remove_orphans()
                    return path, True
        return self.new_room(file, kind, num_bytes), False

    def new_room(self, file: WeightFile, kind: str, num_bytes: int) -> Path:
        """Reserve memory for what is to come from the first byte on; return the path. Raises `InputError`."""
        self._remove_orphans()
        return self._reserve(self.incomplete_path(file, kind), num_bytes)

    def complete_path(self, file: WeightFile, kind: str) -> Path:
        """Return where a kind of a version belongs."""
        return self.path(file) if kind == WHOLE else self.path(file).with_suffix(f".{kind}")

    def incomplete_path(self, file: WeightFile, kind: str) -> Path:
        """Return where it is while it is fetched."""
        whole = self.complete_path(file, kind)
        return whole.with_name(whole.name + INCOMPLETE)

    def _reserve(self, path: Path, num_bytes: int) -> Path:
        if not self._parent.name:
            raise InputError("this engine was started without --weights-dir and takes no weights")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as opened:
                # Memory that turns out to be missing while a mapped file is written would kill the engine.
                os.posix_fallocate(opened.fileno(), 0, num_bytes)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise InputError(
                f"no room for {num_bytes} bytes of weights in {path.parent}: {error.strerror}"
            ) from error
        return path

    def local(self, file: WeightFile) -> WeightFile | None:
        """Return `file` with the path of the engine's own copy, None without one. Its content is not checked."""
        path = self.path(file)
        return replace(file, path=str(path)) if path.is_file() else None

    def drop(self, file: WeightFile) -> None:
        """Remove the copy of `file`, and of its short forms."""
        for kind in (WHOLE, *SHORT_KINDS):
            self.complete_path(file, kind).unlink(missing_ok=True)

    def drop_short(self, file: WeightFile) -> None:
        """Remove the short forms of `file`, since the whole one has come or is about to: else one would be applied."""
        for kind in SHORT_KINDS:
            self.complete_path(file, kind).unlink(missing_ok=True)

    def keep_only(self, file: WeightFile) -> None:
        """Remove all copies but that of `file`."""
        kept = self.path(file)
        for path in self._folder.glob("*/*"):
            if path != kept:
                path.unlink(missing_ok=True)

    def _orphans(self) -> list[Path]:
        """Return the folders of engines of this machine that were killed."""
        host = f"{PREFIX}{socket.gethostname()}-"
        pids = {folder: folder.name.removeprefix(host) for folder in self._parent.glob(f"{host}*")}
        return [f for f, pid in pids.items() if pid.isdigit() and not Path(f"/proc/{pid}").exists()]

    def _remove_orphans(self) -> None:
        for folder in self._orphans():
            shutil.rmtree(folder, ignore_errors=True)
