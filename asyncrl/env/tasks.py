"""Task files: JSON lines, one task each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.textfile import json_records
from asyncrl.types import Task

KEYS = {"id", "seed", "split", "data"}
SPLITS = ("train", "heldout")


def read_task_file(path: str | Path, env: str) -> list[Task]:
    """Read a task file for `env`.

    Each line is `{"id": ..., "seed": ..., "split": ..., "data": {...}}`; only `id` is required. Tasks whose split is
    "heldout" are for evaluation, those whose split is "train", or left out, are trained on.
    Raises `ConfigError` when the file cannot be read, `InputError` naming file and line when one is broken.
    """
    tasks: list[Task] = []
    seen: dict[str, int] = {}
    for number, record in json_records(path, "env.task_file"):
        try:
            task = _parse(record, env)
        except (ValueError, TypeError) as error:
            raise InputError(f"env.task_file: {path}, line {number}: {error}") from error
        if task.id in seen:
            raise InputError(
                f"env.task_file: {path}, line {number}: id {task.id!r} stands on line {seen[task.id]} already"
            )
        seen[task.id] = number
        tasks.append(task)
    if not tasks:
        raise InputError(f"env.task_file: {path}: holds no task")
    return tasks


def _parse(record: dict[str, Any], env: str) -> Task:
    unknown = set(record) - KEYS
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}; allowed: {', '.join(sorted(KEYS))}")
    if not isinstance(record.get("id"), str | int) or record["id"] == "":
        raise ValueError(f"id: must be a string or number, got {record.get('id')!r}")
    seed, data = record.get("seed", 0), record.get("data", {})
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise ValueError(f"seed: must be an integer, got {seed!r}")
    if not isinstance(data, dict):
        raise ValueError(f"data: must be an object, got {data!r}")
    split = record.get("split", "train")
    if split not in SPLITS:
        raise ValueError(f"split: must be {' or '.join(map(repr, SPLITS))}, got {split!r}")
    return Task(id=str(record["id"]), env=env, seed=seed, split=split, data=data)
