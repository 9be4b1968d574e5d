"""Groups that make the loss or gradient NaN or infinite: saved to a file with all that is needed to reproduce it.

    poison/step-NNNNNN.safetensors      weights before the step, the groups, what the objective read, the recipe

`asyncrl replay FILE` repeats the step on one rank.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from asyncrl.config import Config
from asyncrl.data.codec import encode_group, pack
from asyncrl.train.checkpoint.extra_state import split
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.engine.full_state import WEIGHT, gather_state
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import TrainerCallback
from asyncrl.train.step.step_batch import StepBatch

log = logging.getLogger("asyncrl.train")

MAX_FILES = 8
"""Files a run keeps; each holds a whole set of weights."""
ENGINES = "engines/"


class PoisonFolder(TrainerCallback):
    """Saves the groups that poisoned a step. Call on every rank; rank 0 writes."""

    def __init__(self, folder: Path, config: Config, model: str) -> None:
        self.folder = folder
        self.config = config
        self.model = model

    def poisoned(
        self,
        batch: StepBatch,
        wrong: Mapping[str, str],
        engines: Mapping[str, TrainEngine],
        state: Mapping[str, Any],
    ) -> Path | None:
        """Keep the groups of a batch that are wrong (id to what is wrong with it); return the file on rank 0.

        engines: those that the step trains, by name, as they are before it. A disk that refuses is logged.
        """
        version = batch.step
        tensors: dict[str, Tensor] = {}
        first = False
        for name, engine in engines.items():
            first = engine.rank == 0
            kept = {key: t for key, t in gather_state(engine).items() if key.startswith(f"{WEIGHT}/")}
            tensors |= {f"{ENGINES}{name}/{key}": tensor for key, tensor in kept.items()}
        if not first:
            return None
        bodies = pack([encode_group(group) for group in batch.groups if group.id in wrong])
        tensors["groups"] = torch.frombuffer(bytearray(bodies), dtype=torch.uint8)
        about = {
            "version": version,
            "max_age": _max_age(batch),
            "model": self.model,
            "config": self.config.model_dump(mode="json"),
            "wrong": dict(wrong),
            "state": split(dict(state), tensors, "state"),
        }
        path = self.folder / f"step-{version:06d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if len(list(self.folder.glob("step-*"))) >= MAX_FILES and not path.exists():
                log.error("poisoned groups of step %d are not kept: %s is full", version, self.folder)
                return None
            save_file(tensors, str(path), metadata={"about": json.dumps(about)})
        except OSError as error:
            log.error("poisoned groups of step %d are not kept: %s", version, error)
            return None
        return path


def _max_age(batch: StepBatch) -> int:
    """Return how many versions the oldest sampled token of a batch is behind its step."""
    return max(batch.step - int(row.versions[row.loss_mask].min()) for row in batch.trajectories)


def poison_folder(context: CallbackContext) -> PoisonFolder:
    """Return the callback of a run."""
    given = context.arguments
    return PoisonFolder(given.folder / "poison", context.config, given.model)
