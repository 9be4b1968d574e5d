"""The folders of weights. Launchers use this module, so it imports nothing heavy."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import platform
import shutil
from pathlib import Path
from typing import IO

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.scratch import NAME, SHARED_MEMORY, clear_shared_memory, deserted_folders
from asyncrl.tensorfile import tensors_in

OWNER = "owner.json"
"""File in a run's folder of weights that is locked for as long as the run needs the folder."""
STAGED_COPIES = 2
"""Those of a machine's engines that have their own: the version they serve and the next."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
SCRATCH = "rpc-"
"""What the name of an engine's folder for temporary files begins with; its process's number follows."""


def policy_weights(directory: str, name: str) -> str:
    """Return the folder for the weights of a run's further policy; "" for an engine that belongs to no run."""
    return str(Path(directory) / f"policy-{name}") if directory else ""


def weights_folder(config: Config, run: Path) -> Path:
    """Return the folder of a run's published weights: the same for every launch, so that none is left behind."""
    digest = hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()
    return _parent(config) / f"{NAME}{digest}-{run.name}"


def _parent(config: Config) -> Path:
    if config.engine.weights_dir:
        return Path(config.engine.weights_dir).absolute()
    return SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))


def has_own_copies(config: Config) -> bool:
    """Return whether engines keep copies of their own, instead of reading what the trainer has written."""
    forms = any(row.wanted(config) for row in rows("weight_forms"))
    return forms or config.engine.weight_transfer != "shared_file"


def published_bytes(model: Path, dtype: str) -> int:
    """Return the size of a model's weights once they are published, from the headers of its safetensors files."""
    elements = 0
    for path in model.glob("*.safetensors"):
        elements += sum(math.prod(one["shape"]) for one in tensors_in(path)[0].values())
    return elements * BYTES[dtype]


def check_staged_room(config: Config, model: Path, folder: Path) -> None:
    """Raise `ConfigError` if the copies of a machine's engines do not fit in their folder of weights, which exists.

    What is in it already counts as room: an engine that starts again shares the copies of the others.
    """
    if not has_own_copies(config) or config.lora.rank:
        return
    needed = STAGED_COPIES * published_bytes(model, config.model.dtype)
    room = room_of(folder)
    if needed > room:
        raise ConfigError(
            f"engine.weights_dir: {folder.parent} on {platform.node()} has room for {room / 2**30:.2f} GiB and its "
            f"engines need {needed / 2**30:.2f} GiB there, {STAGED_COPIES} copies of the weights; name a folder with "
            "more room, or enlarge it (docker run --shm-size)"
        )


def room_of(folder: Path) -> int:
    """Return the bytes that there are for a folder of weights: what is in it already counts."""
    there = 0
    seen = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            if path.is_file() and found.st_ino not in seen:
                seen.add(found.st_ino)
                there += found.st_size
    parent = next(place for place in (folder, *folder.parents) if place.is_dir())
    return shutil.disk_usage(parent).free + there


def remove_weights(folder: Path, claim: IO[str] | None = None) -> None:
    """Remove a folder of weights, and what engines that were killed have left in this machine's shared memory.

    claim: what `claim_weights` gave for the folder; it is closed.
    """
    for scratch in folder.rglob(f"{SCRATCH}*"):
        clear_shared_memory(scratch)
    shutil.rmtree(folder, ignore_errors=True)
    if claim is not None:
        claim.close()


def claim_weights(folder: Path, run: Path) -> IO[str]:
    """Keep `remove_deserted` from a folder of weights, which exists, until the file that is returned is closed: at the
    latest when this process ends, however it does. Raises OSError."""
    file = os.fdopen(os.open(folder / OWNER, os.O_RDWR | os.O_CREAT, 0o600), "w")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Without content the folder is not claimed yet, and nobody removes it.
    json.dump({"host": platform.node(), "run": str(run.resolve())}, file)
    file.flush()
    return file


def remove_deserted(parent: Path) -> list[str]:
    """Remove the weights of runs of this user that were killed on this machine; return a line on each for the console.

    No later launch of such a run needs them: a run that is resumed reads its checkpoint.
    """
    lines = []
    for folder, written in deserted_folders(parent, OWNER):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            owner = json.loads(written)
            if owner["host"] == platform.node():
                size = sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())
                remove_weights(folder)
                lines.append(
                    f"removed {folder} ({size / 2**20:.0f} MiB): weights that {owner['run']} left when it was killed"
                )
    return lines
