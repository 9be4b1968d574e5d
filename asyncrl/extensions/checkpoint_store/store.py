"""Checkpoints beside the run folder, in any store that fsspec opens: a mounted disk, S3, Google Cloud, WebDAV.

A store has a folder for each checkpoint, with the files of a local one. Its list of files is stored last, so what has
none does not count.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import fsspec

from asyncrl.extensions.checkpoint_store.settings import StoreConfig
from asyncrl.run.checkpoints import MARKER, checkpoint_path, complete_checkpoints, listed_files
from asyncrl.train.checkpoint.copies import CheckpointCopies, CopiesContext

log = logging.getLogger("asyncrl.train")


class CheckpointStore(CheckpointCopies):
    """The checkpoints under a URL. Raises what fsspec and its file system raise, ImportError for one not installed."""

    def __init__(self, url: str) -> None:
        self.where = url
        self._files, self._root = fsspec.core.url_to_fs(url)

    def versions(self) -> list[int]:
        """Return the versions of complete checkpoints, newest first."""
        if not self._files.exists(self._root):
            return []
        names = [name.rstrip("/").rpartition("/")[2] for name in self._files.ls(self._root, detail=False)]
        digits = [name.removeprefix("step-") for name in names if name.startswith("step-")]
        found = [int(digit) for digit in digits if digit.isdigit()]
        return sorted(
            (version for version in found if self._files.exists(f"{self._place(version)}/{MARKER}")),
            reverse=True,
        )

    def put(self, path: Path, version: int, keep: int) -> None:
        """Store a complete checkpoint, and delete those older than the newest `keep`."""
        place = self._place(version)
        self._delete(version)
        listed = listed_files(path, (path / MARKER).read_bytes())
        for name in (*listed, MARKER):
            self._files.makedirs(f"{place}/{name}".rpartition("/")[0], exist_ok=True)
            self._files.put_file(str(path / name), f"{place}/{name}")
        for older in [one for one in self.versions() if one <= version][keep:]:
            self._delete(older)

    def fetch(self, folder: Path, at_most: int) -> None:
        """Bring the newest checkpoint up to a version into `folder`, unless that has it or a newer one."""
        wanted = next((version for version in self.versions() if version <= at_most), -1)
        if wanted <= max(
            (version for version, _ in complete_checkpoints(folder) if version <= at_most), default=-1
        ):
            return
        target, place = checkpoint_path(folder, wanted), self._place(wanted)
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        listed = listed_files(Path(place), self._files.cat_file(f"{place}/{MARKER}"))
        for name in (*listed, MARKER):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(f"{place}/{name}", str(partial / name))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
        log.warning("checkpoint of version %d fetched from %s", wanted, self.where)

    def _place(self, version: int) -> str:
        return f"{self._root.rstrip('/')}/{checkpoint_path(Path(), version).name}"

    def _delete(self, version: int) -> None:
        place = self._place(version)
        # Without its list it does not count, whatever is left of it.
        if self._files.exists(f"{place}/{MARKER}"):
            self._files.rm_file(f"{place}/{MARKER}")
        if self._files.exists(place):
            self._files.rm(place, recursive=True)


def in_store(context: CopiesContext) -> CheckpointCopies:
    """Return that of a run, which only rank 0 opens."""
    url = context.config.section(StoreConfig).checkpoint_store
    return CheckpointStore(url) if context.engine.rank == 0 else CheckpointCopies()
