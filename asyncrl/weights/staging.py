"""Where an engine keeps weight files of its own: what it received, until a newer version is loaded.

The folder is below the engine's folder of weights, so on one machine in shared memory. All ranks of the engine map the
same file, and engines of one machine with the same folder of weights share the file's memory: one has it brought, the
others link it under names of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from asyncrl.errors import InputError
from asyncrl.weights.chunks import WHOLE, short_kinds
from asyncrl.weights.files import WeightFile, verify_weights, weights_path
from asyncrl.weights.vllm_plugin import MACHINE, WEIGHTS_DIR

PREFIX = "staged-"
MAKING = "making"
"""File in a folder of weights that is locked while an engine makes a version of what it has."""
LOOK_S = 0.05
INCOMPLETE = ".fetching"
"""Follows the name of a file that is being fetched or read."""
LINKING = ".linking"


class Staging:
    """The files of one engine process. folder: its folder of weights. pid: of the process, this one by default."""

    def __init__(self, folder: str, pid: int | None = None) -> None:
        self._parent = Path(folder)
        self._folder = self._parent / f"{PREFIX}{socket.gethostname()}-{os.getpid() if pid is None else pid}"
        self._compared: tuple[object, ...] | None = None
        """The copy that `adopt` has compared with its checksum last."""

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
                if found.stat().st_size == num_bytes and not _is_shared(found):
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
            # Never the same file again: another engine may map it.
            path.unlink(missing_ok=True)
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

    def place(self) -> str:
        """Return what tells this machine's folder of weights apart from others; "" for an engine without one."""
        if not self._parent.name:
            return ""
        self._parent.mkdir(parents=True, exist_ok=True)
        found, boot = self._parent.stat(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{found.st_dev}/{found.st_ino}"

    def adopt(self, file: WeightFile, kind: str = WHOLE) -> bool:
        """Have a kind of a file, or the whole file, that this engine or another one of this folder has in full.

        It costs no memory. Returns False where there is none.
        """
        for one in dict.fromkeys((WHOLE, kind)) if self._parent.name else ():
            own = self.complete_path(file, one)
            name = own.relative_to(self._folder)
            for found in (own, *(folder / name for folder in self._neighbours())):
                before = _content(found, file)
                if not _is_complete(found, file, one):
                    continue
                if found != own:
                    try:
                        self._link(found, own)
                    except OSError:
                        # It was removed meanwhile, or the file system has no links.
                        continue
                if one == WHOLE:
                    self._compared = before
                return True
        return False

    def is_compared(self, file: WeightFile) -> bool:
        """Return whether `adopt` has compared the engine's copy of `file` with its checksum, and nobody wrote since."""
        return self._compared is not None and self._compared == _content(self.path(file), file)

    @contextlib.contextmanager
    def making(self, limit_s: float) -> Iterator[None]:
        """Be the only engine of this folder that makes a version. One that is kept waiting for `limit_s` goes on."""
        deadline = time.monotonic() + limit_s
        self._parent.mkdir(parents=True, exist_ok=True)
        with open(self._parent / MAKING, "w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(LOOK_S)
            yield

    def _link(self, found: Path, own: Path) -> None:
        own.parent.mkdir(parents=True, exist_ok=True)
        new = own.with_name(own.name + LINKING)
        new.unlink(missing_ok=True)
        os.link(found, new)
        os.replace(new, own)
        # Where both names are of one file already, `os.replace` leaves both.
        new.unlink(missing_ok=True)

    def local(self, file: WeightFile) -> WeightFile | None:
        """Return `file` with the path of the engine's own copy, None without one. Its content is not checked."""
        path = self.path(file)
        return replace(file, path=str(path)) if path.is_file() else None

    def drop(self, file: WeightFile) -> None:
        """Remove the copy of `file`, and of its short forms."""
        for kind in (WHOLE, *short_kinds()):
            self.complete_path(file, kind).unlink(missing_ok=True)

    def drop_short(self, file: WeightFile) -> None:
        """Remove the short forms of `file`, since the whole one has come or is about to: else one would be applied."""
        for kind in short_kinds():
            self.complete_path(file, kind).unlink(missing_ok=True)

    def keep_only(self, file: WeightFile) -> None:
        """Remove all copies but that of `file`."""
        kept = self.path(file)
        for path in self._folder.glob("*/*"):
            if path != kept:
                path.unlink(missing_ok=True)

    def _neighbours(self) -> list[Path]:
        """Return the folders of the other engines, also of those that were killed."""
        return [folder for folder in sorted(self._parent.glob(f"{PREFIX}*")) if folder != self._folder]

    def _orphans(self) -> list[Path]:
        """Return the folders of engines of this machine that were killed."""
        host = f"{PREFIX}{socket.gethostname()}-"
        pids = {folder: folder.name.removeprefix(host) for folder in self._parent.glob(f"{host}*")}
        return [f for f, pid in pids.items() if pid.isdigit() and not Path(f"/proc/{pid}").exists()]

    def _remove_orphans(self) -> None:
        for folder in self._orphans():
            shutil.rmtree(folder, ignore_errors=True)


def copies_of_machine(env: Mapping[str, str] = os.environ) -> Staging | None:
    """Return where a worker's machine has its copies; None on the server's machine, whose files workers read."""
    if not int(env.get(MACHINE) or 0):
        return None
    # All workers of a machine are children of one process.
    return Staging(env.get(WEIGHTS_DIR, ""), os.getppid())


def _is_complete(path: Path, file: WeightFile, kind: str) -> bool:
    """Return whether a path holds a kind of a file. Only the whole file has a checksum: what is made of a short form is
    checked later."""
    try:
        if kind == WHOLE:
            verify_weights(replace(file, path=str(path)))
            return True
        return path.stat().st_size == file.source(kind)[1]
    except (InputError, OSError):
        return False


def _content(path: Path, file: WeightFile) -> tuple[object, ...] | None:
    """Return what changes where another file takes the path or somebody writes to it; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    # A further name changes neither.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, file.checksum


def _is_shared(path: Path) -> bool:
    """Return whether a file has names in folders of several engines: its bytes must stay as they are."""
    found = path.stat()
    names = [one for one in path.parent.iterdir() if one.stat().st_ino == found.st_ino]
    return found.st_nlink > len(names)
