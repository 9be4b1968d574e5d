"""Which runs of a folder may be deleted, and their deletion."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from asyncrl.clock import age_s
from asyncrl.errors import ConfigError
from asyncrl.jsonfile import read_json
from asyncrl.run.folder import RunFolder
from asyncrl.run.runs import find_runs, read_config, run_line


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

    A run stays that is running, is a link, or holds the model of a run that is not chosen; so does what is no run, such
    as a model's folder. Raises `ConfigError`.
    """
    if (place / "config.json").is_file():
        raise ConfigError(
            f"{place}: is a run itself; give the folder that holds runs, such as {place.parent}"
        )
    # By folder: the name of a link is that of what it leads to, and another folder here may have it.
    folders = sorted({path.parent for path in place.glob("*/config.json")})
    if not folders:
        find_runs(place)
    lines = {folder: run_line(folder.name, folder) for folder in folders}
    runs = [folder for folder in lines if not _is_other(folder)]
    oldest_first = sorted(runs, key=lambda folder: lines[folder].changed)
    old = oldest_first[: max(0, len(runs) - keep)] + [folder for folder in lines if folder not in runs]
    old = [folder for folder in old if age_s(lines[folder].changed) > older_than_s]
    bases = {folder.name: _model(folder) for folder in lines if folder not in old}
    found = []
    for folder in old:
        why = _is_other(folder) or ("it is running" if lines[folder].state == "running" else "")
        why = why or _used_by(folder, bases)
        found.append(Prunable(folder.name, folder, lines[folder].changed, _size(folder), why))
    return found


def _is_other(folder: Path) -> str:
    """Return why a folder is not deleted as a run whatever its age, "" for a run that may be."""
    if folder.is_symlink():
        return "it is a link"
    config = None if (folder / "config.json").is_symlink() else read_json(folder / "config.json")
    if config is None or not all(isinstance(config.get(section), dict) for section in ("env", "train")):
        return "it is no run: its config.json is not one of a run"
    return ""


def delete_run(folder: Path) -> None:
    """Delete a run's folder. Raises `ConfigError` if it is no run, in use, or cannot be deleted.

    What says that the folder is a run goes last, so that a deletion that is interrupted can be repeated.
    """
    if other := _is_other(folder):
        raise ConfigError(f"{folder}: is not deleted: {other}")
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
