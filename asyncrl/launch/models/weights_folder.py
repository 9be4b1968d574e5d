"""Where a run publishes its weights, and whether they fit there."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.services.command import with_trainer
from asyncrl.weights.folders import BYTES, STAGED_COPIES, has_own_copies, published_bytes

PUBLISHED_COPIES = 3
"""The version that is written, the one that is served, and the one before it."""
STATE_BYTES = 12
"""The bytes of a trained weight: itself in float32, and Adam's two moments of it."""


def check_room(config: Config, model: str, folder: Path) -> None:
    """Raise `ConfigError`, naming the key that moves them, if a run's weights do not fit where they are published.

    Without the model's files at hand, as for a name of a hub, nothing is known and nothing refused.
    """
    one = 0 if config.lora.rank else published_bytes(Path(model), config.model.dtype)
    copies = PUBLISHED_COPIES + (STAGED_COPIES if has_own_copies(config) else 0) + checkpoint_copies(config)
    advice = "".join(f", or set train.{key}=0" for key in config.train.kept_states)
    if any(row.keeps_versions for row in with_trainer(config)):
        # The current version, those before it that tokens may carry, and the one that is written.
        copies += config.buffer.max_staleness + 2
    parent = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = shutil.disk_usage(parent).free
    if one * copies > free:
        raise ConfigError(
            f"engine.weights_dir: {folder.parent} has {free / 2**30:.2f} GiB free and the run needs "
            f"{one * copies / 2**30:.2f} GiB there, {copies} copies of the weights; name a folder with more room, or "
            f"enlarge it (docker run --shm-size){advice}"
        )


def checkpoint_copies(config: Config) -> int:
    """Return as how many copies of the weights the states count that one machine keeps there."""
    return math.ceil(kept_states(config, STATE_BYTES) / BYTES[config.model.dtype])


def kept_states(config: Config, state: int) -> float:
    """Return the bytes of the states that one machine keeps there, for a training state of so many bytes."""
    return sum(config.train.kept_states.values()) * state
