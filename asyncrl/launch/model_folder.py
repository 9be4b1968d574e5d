"""Noticing that the model a run started from is no longer the one on disk."""

from __future__ import annotations

import json
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json

RECORD = "model.json"


def fingerprint(model: str) -> dict[str, list[int]]:
    """Return size in bytes and time of change in nanoseconds of each file; {} for a hub name."""
    folder = Path(model)
    if not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            stat = path.stat()
            found[path.name] = [stat.st_size, stat.st_mtime_ns]
    return found


def remember_model(run: Path, model: str) -> None:
    """Write down what the model's files look like, unless an earlier life of the run has."""
    record = run / RECORD
    if not record.exists():
        write_json(record, fingerprint(model))


def check_model(run: Path, model: str) -> None:
    """Raise `ConfigError` naming the first file that was changed, removed or added since the run began."""
    record = run / RECORD
    if not record.exists():
        return
    before, now = json.loads(record.read_text()), fingerprint(model)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            how = "is gone" if name not in now else "is new" if name not in before else "has changed"
            raise ConfigError(
                f"model.path: {Path(model) / name} {how} since the run began; a process started now would not "
                "have the model the others have. Put it back, or start another run"
            )
