"""Where a run's checkpoints are and which are whole. Imports no torch, so that the launcher can look too."""

from __future__ import annotations

from pathlib import Path

MARKER = "complete.json"
"""Written last; lists size and checksum of every other file."""
VALUES = "training.json"


def checkpoint_path(folder: Path, version: int) -> Path:
    return folder / f"step-{version:06d}"


def complete_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Return `(version, path)` of the training checkpoints that were written to their end, newest first."""
    found = []
    for path in folder.glob("step-*"):
        digits = path.name.removeprefix("step-")
        if digits.isdigit() and (path / MARKER).is_file() and (path / VALUES).is_file():
            found.append((int(digits), path))
    return sorted(found, reverse=True)
