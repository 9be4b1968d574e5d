"""The cached tiny base model of a recipe: trained once, then found by what it depends on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path

from asyncrl.cache import cache_folder
from asyncrl.config import Config
from asyncrl.errors import UnavailableError
from asyncrl.import_path import source_file
from asyncrl.process_start import start_process
from asyncrl.scratch import scratch_folder
from asyncrl.tasks.data_rows import has_rows, rows_of

STDERR = 2
OF_THE_TINY_MODEL = (
    *("hidden_size", "num_layers", "episodes", "oracle_fraction", "oracle_first", "observation_weight"),
    *("concurrency", "steps", "batch_size", "learning_rate"),
)
"""Settings of `[sft]` on which it depends."""
FORMAT = 3
"""Increased when the recipe for the base model changes, so that caches of older code are not used."""


def base_model_key(config: Config) -> str:
    """Return a name that changes with everything the base model depends on."""
    name, source = config.env.name, ""
    if ":" in name:
        module, _, name = name.rpartition(":")
        # The demonstrations follow from what the file says, not from where it is.
        source = source_file("env.name", module).read_bytes().decode("utf-8", "backslashreplace")
    parts = {
        "format": FORMAT,
        "sft": {key: value for key, value in config.sft.model_dump().items() if key in OF_THE_TINY_MODEL},
        "env": [name, config.env.config, *([source] if source else [])],
        "max_model_len": config.engine.max_model_len,
    }
    if has_rows(config):
        # As above: from what the rows say.
        parts["rows"] = rows_of(config).digest
    digest = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=6).hexdigest()
    return f"{name}-{digest}"


def base_model_is_cached(config: Config) -> bool:
    """True when the recipe's base model has been trained already."""
    return (_folder(config) / "config.json").exists()


def _folder(config: Config) -> Path:
    return cache_folder() / "base_models" / base_model_key(config)


def cached_base_model(config: Config) -> Path:
    """Return the folder of the recipe's base model, training it first when it is not there.

    The training runs in a process of its own, so the launcher never loads torch. A second run that needs the same model
    meanwhile waits for it. Raises `UnavailableError`.
    """
    folder = _folder(config)
    if base_model_is_cached(config):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not base_model_is_cached(config):
            _train(config, folder)
    return folder


def _train(config: Config, folder: Path) -> None:
    print(f"training the tiny base model once, into {folder}", file=sys.stderr, flush=True)
    with scratch_folder("sft") as scratch:
        file = scratch / "config.json"
        file.write_text(config.model_dump_json())
        argv = [sys.executable, "-m", "asyncrl", "sft", str(file), "--out", str(folder)]
        # In a session of its own: Ctrl-C is for this process, with which that one ends.
        code = start_process(argv, os.environ, output=STDERR).wait()
    if code != 0:
        raise UnavailableError(
            f"the base model could not be trained (asyncrl sft ended with exit code {code})"
        )
