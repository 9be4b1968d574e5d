"""Which runs of a folder may be deleted, and their deletion."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.monitor.runs import find_runs, read_config, run_line
from asyncrl.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Prunable:
    """A run that was chosen, and why it has to stay, if it has."""

    name: str
    folder: Path
    changed: float
    """Seconds since 1970 at which it last wrote."""
    num_bytes: int
    kept_because: str = ""


def choose_runs(place: Path, older_than_s: float, keep: int) -> list[Prunable]:
    """Return the runs that last wrote more than `older_than_s` ago, but for the `keep` newest of all; oldest first.

    A run stays that is running, is a link, or holds the model of a run that is not chosen. Raises `ConfigError`.
    """
    if (place / "config.json").is_file():
        raise ConfigError(
            f"{place}: is a run itself; give the folder that holds runs, such as {place.parent}"
        )
    lines = [run_line(name, folder) for name, folder in find_runs(place).items() if folder.parent == place]
    oldest_first = sorted(lines, key=lambda line: line.changed)
    old = oldest_first[: max(0, len(lines) - keep)]
    old = [line for line in old if time.time() - line.changed > older_than_s]
    states = {line.name: line.state for line in old}
    staying = {line.name for line in lines} - set(states)
    bases = {name: _model(place / name) for name in staying}
    found = []
    for line in old:
        folder = place / line.name
        why = (
            "it is running"
            if states[line.name] == "running"
            else "it is a link"
            if folder.is_symlink()
            else ""
        )
        why = why or _used_by(folder, bases)
        found.append(Prunable(line.name, folder, line.changed, _size(folder), why))
    return found


def delete_run(folder: Path) -> None:
    """Delete a run's folder. Raises `ConfigError` if the run is in use or cannot be deleted.

    What says that the folder is a run goes last, so that a deletion that is interrupted can be repeated.
    """
    with RunFolder(folder):
        try:
            for path in list(folder.iterdir()):
                if path.name in ("config.json", "lock"):
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            shutil.rmtree(folder)
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be deleted: {error.strerror} ({error.filename})") from error


def _model(folder: Path) -> Path:
    return Path(str(read_config(folder)["model"].get("path", ""))).absolute()


def _used_by(folder: Path, bases: Mapping[str, Path]) -> str:
    users = [name for name, model in bases.items() if model.is_relative_to(folder.absolute())]
    return f"it holds the model of {', '.join(sorted(users))}" if users else ""


def _size(folder: Path) -> int:
    """Return the bytes that a folder takes; a file with several names in it counts once."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            stat = (Path(parent) / name).lstat()
            sizes[stat.st_ino] = stat.st_blocks * 512
    return sum(sizes.values())
