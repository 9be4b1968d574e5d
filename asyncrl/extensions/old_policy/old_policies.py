"""Old log-probabilities from a model of their own: every token scored under the version that sampled it.

The dedicated old-policy model of 2605.12070. It gives the numbers of `snapshots.Snapshots`, which are exact, in another
process: on other hardware, while the batch is still being sampled, and without copies in the trainer.

    trainer: weights of version v -> file in a folder of its own
    old-policy process: files -> one model; groups that are ready -> log-probabilities, kept until the trainer asks
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from asyncrl.errors import ConfigError
from asyncrl.extensions.old_policy.model import Row
from asyncrl.extensions.old_policy.snapshots import KeptVersions
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import IMAGES
from asyncrl.weights.files import read_weights, remove_older, weights_path, write_weights


class OldPolicyService(Protocol):
    """Returns [L] float32 for each row: log-probabilities of the sampled tokens, zero elsewhere."""

    def score(self, rows: Sequence[Row]) -> list[np.ndarray]: ...


class OldPolicies(KeptVersions):
    """The trainer's side, used as `Snapshots` is: it leaves each version in a file and asks the process for numbers.

    keep: versions before the current one that a batch may hold tokens of.
    """

    def __init__(self, folder: Path, keep: int, service: OldPolicyService) -> None:
        self.folder = folder
        self.keep = keep
        self.service = service

    @property
    def versions(self) -> list[int]:
        """Those that are kept."""
        return sorted(int(path.stem.removeprefix("weights-")) for path in self.folder.glob("*.safetensors"))

    def remember(self, engine: TrainEngine, version: int) -> None:
        """Keep the current weights as `version`; drop versions that no token of a batch can carry any more.

        A collective. Raises `UnavailableError` where the folder has no room for another version.
        """
        if engine.rank == 0:
            write_weights(self.folder, version, engine.weights())
            remove_older(self.folder, version - self.keep)
        else:
            for _ in engine.weights():
                pass
        # Tokens of this version may come as soon as it is published.
        engine.barrier()

    def logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """Return on the first rank the log-probabilities of the sampled tokens, each under its own version.

        A collective. Raises `InfrastructureError` and `InputError` naming what is missing.
        """
        found = Ragged.full(np.zeros_like(batch.counts))
        if engine.rank == 0:
            if any(IMAGES in t.extras for t in batch.trajectories):
                raise ConfigError("train.old_policy: must be 'trainer' where trajectories have images")
            rows = [Row(t.token_ids, t.loss_mask, t.versions) for t in batch.trajectories]
            scored = [values[row.mask] for values, row in zip(self.service.score(rows), rows, strict=True)]
            found = Ragged(torch.from_numpy(np.concatenate(scored)), batch.counts)
        engine.barrier()
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"versions": {v: dict(read_weights(weights_path(self.folder, v))) for v in self.versions}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring back the versions of a checkpoint. Every rank writes the same files, each of them at once."""
        for version, tensors in state["versions"].items():
            write_weights(self.folder, int(version), tensors.items())
