"""A vector for each task, by which similar tasks are near each other. Torch-free.

A task's own is taken from `task.data["embedding"]`, such as a sentence embedding that its author computed. Otherwise
the words and numbers in its data are hashed to signed coordinates (feature hashing, Weinberger et al. 2009).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence

import numpy as np

from asyncrl.errors import InputError
from asyncrl.types import Task

HASHED = 64
"""Coordinates of hashed words."""
WORD = re.compile(r"\w+")


def embed(tasks: Sequence[Task]) -> np.ndarray:
    """[N, D] vectors of length 1.

    Raises `InputError` for a task without data to tell it by, and for embeddings of unlike sizes.
    """
    rows = [_row(task) for task in tasks]
    sizes = {len(row) for row in rows}
    if len(sizes) > 1:
        raise InputError(f"data['embedding'] must have one size in all tasks, got {sorted(sizes)}")
    matrix = np.array(rows).reshape(len(rows), sizes.pop() if sizes else HASHED)
    return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)


def _row(task: Task) -> list[float]:
    given = task.data.get("embedding")
    if given is not None:
        try:
            row = [float(x) for x in given]
        except (TypeError, ValueError):
            row = []
        if not row or not np.isfinite(row).all():
            raise InputError(f"task {task.id!r}: data['embedding'] must be a list of finite numbers")
        return row
    words = WORD.findall(json.dumps(task.data, sort_keys=True).lower())
    if not words:
        raise InputError(
            f"task {task.id!r}: this curriculum compares tasks by their data, and this one has none; give "
            "data['embedding'], or take a curriculum that does not compare them"
        )
    row = [0.0] * HASHED
    for word in words:
        code = zlib.crc32(word.encode())
        row[code % HASHED] += 1.0 if code >> 31 else -1.0
    return row
