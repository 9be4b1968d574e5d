"""Temporary folders that are gone when their process is, however it ends.

A process removes its folder when it is done with it. The folder of one that was killed is removed by the next process
of the same user that makes one in the same place: a file in it is locked for as long as its process lives. Launchers
and all commands use this module, so it imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = "asyncrl-"
"""What the names of such folders begin with."""
OWNER = ".owner"
"""File in such a folder, locked while its process needs it. It has the name of that process's machine."""
SHARED_MEMORY = Path("/dev/shm")

_looked_through: set[Path] = set()
"""Where this process has looked for what others have left: it looks once."""


@contextmanager
def scratch_folder(what: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a folder in `parent`, by default the one for temporary files, and remove it at the end, unless `keep` was
    called.

    what: goes into its name. Raises OSError where none can be made.
    """
    parent = parent or Path(tempfile.gettempdir())
    if parent not in _looked_through:
        _looked_through.add(parent)
        remove_deserted(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{NAME}{what}-", dir=parent))
    with open(folder / OWNER, "w") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        # Without content the folder is not claimed yet, and nobody removes it.
        owner.write(platform.node())
        owner.flush()
        try:
            yield folder
        finally:
            if (folder / OWNER).exists():
                _remove(folder)


def keep(folder: Path) -> None:
    """Leave a scratch folder for whoever wants to read what is in it. Nobody removes it then."""
    (folder / OWNER).unlink(missing_ok=True)


def remove_deserted(parent: Path) -> None:
    """Remove the scratch folders of processes of this user that were killed on this machine."""
    for folder, machine in deserted_folders(parent, OWNER):
        if machine == platform.node():
            _remove(folder)


def deserted_folders(parent: Path, owner: str) -> Iterator[tuple[Path, str]]:
    """Yield the folders of this user whose process has ended without removing them, each with what that has written
    about itself. Until the next one is asked for, no other process gets a folder that was yielded.

    owner: the name of the file in a folder that its process holds locked. What has none, or an empty one, is not
    claimed yet. On a network file system the locks of other machines may not be seen: compare the machine before
    removing.
    """
    for folder in sorted(parent.glob(f"{NAME}*")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with open(folder / owner, "r+") as file:
                # Refused while its process lives.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if written := file.read():
                    yield folder, written


def clear_shared_memory(scratch: Path) -> None:
    """Remove the segments by which the ranks of a CPU engine reduced, which vLLM leaves behind when it is killed.

    scratch: the folder of the engine's temporary files. vLLM names the segments like the file there by which its ranks
    found each other, so those of other engines are not touched.
    """
    for rendezvous in scratch.glob("vllm_dist_*"):
        for segment in SHARED_MEMORY.glob(f"{rendezvous.name}-*"):
            segment.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    clear_shared_memory(folder)
    shutil.rmtree(folder, ignore_errors=True)
