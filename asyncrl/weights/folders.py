"""The folders of weights. Launchers use this module, so it imports nothing heavy."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from asyncrl.config import Config

SHARED_MEMORY = Path("/dev/shm")


def policy_weights(directory: str, name: str) -> str:
    """Return the folder for the weights of a run's further policy; "" for an engine that belongs to no run."""
    return str(Path(directory) / f"policy-{name}") if directory else ""


def weights_folder(config: Config, run: Path) -> Path:
    """Return the folder of a run's published weights: the same for every launch, so that none is left behind."""
    digest = hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()
    return _parent(config) / f"asyncrl-{digest}-{run.name}"


def _parent(config: Config) -> Path:
    if config.engine.weights_dir:
        return Path(config.engine.weights_dir).absolute()
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
