"""Where the episodes of a run that were played again are kept.

replays/DIGEST-K.parquet        the K-th time that an episode was played again, in the columns of `trajectories/`
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = "replays"


def replay_files(run: Path, step: int, group: str, index: int) -> list[Path]:
    """Return the files of the times that an episode was played again, the first one first."""
    return sorted((run / FOLDER).glob(f"{_digest(step, group, index)}-*.parquet"))


def new_replay_file(run: Path, step: int, group: str, index: int) -> Path:
    """Return the next such file, and make its folder. Raises `OSError`."""
    (run / FOLDER).mkdir(exist_ok=True)
    number = len(replay_files(run, step, group, index)) + 1
    return run / FOLDER / f"{_digest(step, group, index)}-{number:03d}.parquet"


def _digest(step: int, group: str, index: int) -> str:
    """Return what an episode's files are called: a group's name may hold anything."""
    return hashlib.blake2b(f"{step}/{group}/{index}".encode(), digest_size=8).hexdigest()
