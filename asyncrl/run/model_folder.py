"""Detects that the model a run started from has changed on disk."""

from __future__ import annotations

import json
from pathlib import Path

from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json

RECORD = "model.json"


def fingerprint(model: str) -> dict[str, list[int]]:
    """Return size in bytes and modification time in nanoseconds of each file; {} for a hub name."""
    folder = Path(model)
    if not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            stat = path.stat()
            found[path.name] = [stat.st_size, stat.st_mtime_ns]
    return found


def vocab_size(model: str) -> int:
    """Return the number of token ids of a model on this machine, 0 if unknown."""
    return _size(model, "vocab_size")


def context_length(model: str) -> int:
    """Return the tokens that a model on this machine can read at once, 0 if unknown."""
    return _size(model, "max_position_embeddings")


def _size(model: str, name: str) -> int:
    path = Path(model) / "config.json" if Path(model).is_dir() else _downloaded(model, "config.json")
    if not isinstance(path, str | Path) or not Path(path).is_file():
        return 0
    config = json.loads(Path(path).read_text())
    found = config.get(name, config.get("text_config", {}).get(name, 0))
    return found if isinstance(found, int) else 0


def _downloaded(model: str, name: str) -> object:
    """Return the path of a hub model's file on this machine; anything else where there is none."""
    from huggingface_hub import try_to_load_from_cache  # not above: every role loads this module
    from huggingface_hub.errors import HFValidationError

    try:
        return try_to_load_from_cache(model, name)
    except HFValidationError:
        return None  # neither a folder nor a hub name: whoever loads it says so


def remember_model(run: Path, model: str) -> None:
    """Record the state of the model's files, unless an earlier launch of the run has."""
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
