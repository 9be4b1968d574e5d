"""What a look at every row of a large source has found, kept for the processes and runs that ask the same of it.

A look reads and judges millions of rows in minutes. What it depends on is the name of its file: the source as it was
read, the settings, and the code that reads and judges rows.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from asyncrl.cache import cache_file, code_digest, whole_file
from asyncrl.extensions import table
from asyncrl.rows.source import Rows

LEAST_ROWS = 10_000
"""A smaller source is read again sooner than anybody notices."""
KEPT = 32
"""Looks that are kept; the ones that were used longest ago go first."""
CODE = ("rows", "rewards", "textfile.py")
"""Files and folders of the package whose code decides what a look finds."""
SEAMS = ("rewards", "data_formats", "row_contents")
"""So does that of extensions that add to these."""


Look = Callable[[], tuple[dict[str, np.ndarray], bool]]
"""Returns what is found of rows, and whether that may be kept."""


def kept(rows: Rows, asked: str, look: Look) -> dict[str, np.ndarray]:
    """Return what `look` finds of `rows`, or what it found when the same was asked of the same rows before.

    asked: everything else that decides what is found. Nothing is kept of small sources.
    """
    if len(rows) < LEAST_ROWS:
        return look()[0]
    file = cache_file("rows", "\n".join((rows.fingerprint, asked, _code())), ".npz")
    with contextlib.suppress(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        os.utime(file)
        return arrays
    arrays, lasting = look()
    if not lasting:
        return arrays
    # A cache that cannot be written costs the next look its time, and nothing else.
    with contextlib.suppress(OSError):
        _write(file, arrays)
    return arrays


def _write(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with whole_file(file) as partial, open(partial, "wb") as opened:
        np.savez(opened, **arrays)  # type: ignore[arg-type]
    files = sorted(file.parent.glob("*.npz"), key=lambda path: path.stat().st_mtime)
    for old in files[:-KEPT]:
        old.unlink(missing_ok=True)


def _code() -> str:
    adding = sorted({row.extension for seam in SEAMS for row in table.rows(seam)})
    return code_digest(*CODE, *(f"extensions/{name}" for name in adding))
