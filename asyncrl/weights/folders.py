"""The folders of weights. Launchers use this module, so it imports nothing heavy."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from asyncrl.config import Config

SHARED_MEMORY = Path("/dev/shm")
SCRATCH = "rpc-"
"""What the name of an engine's folder for temporary files begins with; its process's number follows."""


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


def remove_weights(folder: Path) -> None:
    """Remove a folder of weights, and what engines that were killed have left in this machine's shared memory."""
    for scratch in folder.rglob(f"{SCRATCH}*"):
        clear_shared_memory(scratch)
    shutil.rmtree(folder, ignore_errors=True)


def clear_shared_memory(scratch: Path) -> None:
    """Remove the segments by which the ranks of a CPU engine reduced, which vLLM leaves behind when it is killed.

    scratch: the folder of the engine's temporary files. vLLM names the segments like the file there by which its ranks
    found each other, so those of other engines are not touched.
    """
    for rendezvous in scratch.glob("vllm_dist_*"):
        for segment in SHARED_MEMORY.glob(f"{rendezvous.name}-*"):
            segment.unlink(missing_ok=True)
