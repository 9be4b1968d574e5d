"""The supervised start of a user's model, cached by what it depends on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from asyncrl.cache import cache_folder
from asyncrl.config import Config, parse_config
from asyncrl.config_sections import SCRIPTED, TRAINED_ON
from asyncrl.errors import UnavailableError
from asyncrl.process_start import start_process
from asyncrl.run.checkpoints import MARKER, STATE
from asyncrl.scratch import scratch_folder
from asyncrl.weights.chunks import file_checksum

STDERR = 2
FORMAT = 1
"""Increased when supervised training changes, so that caches of older code are not used."""
OF_THE_TINY_MODEL = {"hidden_size", "num_layers", "oracle_fraction", "oracle_first", "observation_weight"}
TRAINED_BY = {"optimizer", "betas", "zero_stage"}
"""Settings of `[train]` on which the trained weights depend."""


def cached_start(config: Config) -> Path:
    """Return the folder of the model after its supervised start, training it first when it is not there.

    The training runs in a process of its own, so the launcher never loads torch, and goes on where an earlier one was
    interrupted. A second run that needs the same model meanwhile waits for it. Raises `UnavailableError`.
    """
    key = start_key(config)
    folder = (cache_folder() / "base_models" / key).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{key}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "config.json").is_file():
            print(
                f"supervised start of {config.model.path}, once, into {folder}", file=sys.stderr, flush=True
            )
            _train(config, folder)
    return folder


def start_key(config: Config) -> str:
    """Return a name that changes with everything the model after its supervised start depends on."""
    sft = {key: value for key, value in config.sft.model_dump().items() if key not in OF_THE_TINY_MODEL}
    train = {key: value for key, value in config.train.model_dump().items() if key in TRAINED_BY}
    scripted = config.sft.data == SCRIPTED
    parts = {
        "format": FORMAT,
        "model": [config.model.path, _content(config.model.path), config.model.dtype],
        "sft": sft,
        "data": {} if scripted else config.data.model_dump(),
        "rows": [_content(path) for path in _paths(config)],
        "env": [config.env.name, config.env.config] if scripted else [],
        "train": train,
        "lora": config.lora.model_dump() if config.lora.rank else {},
        "max_model_len": config.engine.max_model_len,
    }
    digest = hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=6)
    return f"{Path(config.model.path).name}-{digest.hexdigest()}"


def save_model(checkpoint: Path, folder: Path) -> Path:
    """Copy the model of a checkpoint, without what only training needs; `folder` appears whole or not at all."""
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(checkpoint, partial, ignore=shutil.ignore_patterns(STATE, MARKER))
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    return folder


def _train(config: Config, folder: Path) -> None:
    work = folder.with_name(f"{folder.name}.training")
    data: dict[str, Any] = config.model_dump(mode="json")
    data["run"] |= {"folder": str(work.parent), "name": work.name}
    with scratch_folder("sft") as scratch:
        file = scratch / "config.json"
        file.write_text(parse_config(data, strict=False).model_dump_json())
        what = ["--resume", str(work)] if (work / "config.json").is_file() else [str(file)]
        argv = [sys.executable, "-m", "asyncrl", "sft", *what, "--out", str(folder)]
        # In a session of its own: Ctrl-C is for this process, with which that one ends.
        code = start_process(argv, os.environ, output=STDERR).wait()
    if code != 0:
        raise UnavailableError(f"the supervised start has failed (asyncrl sft ended with exit code {code})")
    shutil.rmtree(work, ignore_errors=True)


def _paths(config: Config) -> list[str]:
    """Return the paths of the sources of rows, held-out ones included: they are never learned from."""
    given = [config.data.train, config.data.heldout]
    if config.sft.data not in ("", SCRIPTED, TRAINED_ON):
        given.append(config.sft.data)
    listed = [one for source in given for one in (source if isinstance(source, list) else [source])]
    return [one if isinstance(one, str) else one.path for one in listed]


def _content(path: str) -> list[Any]:
    """Return checksums of a file, or of the files in a folder; nothing for what is not on this machine."""
    place = Path(path) if path else None
    if place is None or not place.exists():
        return []
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    return [[str(file.relative_to(place)), file_checksum(file)] for file in files]
