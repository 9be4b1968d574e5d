"""The run folder: created once, locked while a run uses it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from asyncrl.config import Config, load_config, override_config
from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json
from asyncrl.types import MAIN_POLICY

POLICIES = "policies"
"""Folder of a run with those of its further policies."""


def folder_of(run: Path, policy: str) -> Path:
    """Return the folder of a policy. That of the main one is the run's."""
    return run if policy == MAIN_POLICY else run / POLICIES / policy


class RunFolder:
    """`runs/NAME/` with its lock. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    def __enter__(self) -> RunFolder:
        try:
            private_folder(self.path)
            self._lock = open(self.path / "lock", "w")
        except OSError as error:
            raise ConfigError(f"run folder {self.path}: cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"run folder {self.path}: another run is using it") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()

    def write_json(self, name: str, value: object) -> None:
        """Write a JSON file atomically. Raises `ConfigError` on a full or read-only disk."""
        try:
            write_json(self.path / name, value, indent=2)
        except OSError as error:
            raise ConfigError(f"{self.path / name}: cannot be written: {error.strerror}") from error


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can access. Raises `ConfigError` for a folder of another user, OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise ConfigError(f"{path}: belongs to another user, or is a link; remove it or choose another name")
    path.chmod(0o700)


def choose_folder(config: Config, recipe: Path) -> Path:
    """Return `run.folder`/`run.name`; without a name, the recipe's folder name and the first free number.

    Raises `ConfigError` when a named run already exists.
    """
    base = Path(config.run.folder)
    if config.run.name:
        path = base / config.run.name
        if (path / "metrics.jsonl").exists():
            raise ConfigError(
                f"run.name: {str(path)!r} already holds a run; choose another name, "
                f"or resume it: asyncrl train --resume {path}"
            )
        return path
    stem = recipe.parent.name if recipe.name == "recipe.toml" else recipe.stem
    number = 1
    while (base / f"{stem}-{number}").exists():
        number += 1
    return base / f"{stem}-{number}"


def open_run(path: Path, overrides: Sequence[str]) -> Config:
    """Return the configuration of a run to resume, with overrides. Raises `ConfigError`."""
    if not (path / "config.json").is_file():
        raise ConfigError(f"--resume {path}: has no config.json; give the folder of a run, such as runs/NAME")
    return override_config(load_config(path / "config.json"), overrides)
