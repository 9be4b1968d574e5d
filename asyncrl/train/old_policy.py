"""Old log-probabilities from a model of their own: every token scored under the version that sampled it.

The dedicated old-policy model of 2605.12070. It gives the numbers of `auxiliary_weights.Snapshots`, which are exact,
in another process: on other hardware, while the batch is still being sampled, and without copies in the trainer.

    trainer: weights of version v -> file in a folder of its own
    old-policy process: files -> one model; groups that are ready -> log-probabilities, kept until the trainer asks
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.errors import InputError
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.lora import published
from asyncrl.train.policy import PolicyModel
from asyncrl.train.step_batch import StepBatch
from asyncrl.types import Group
from asyncrl.weights.files import read_weights, remove_older, weights_path, write_weights

FOLDER = "old-policy"
"""Below the folder of published weights: the versions that tokens of a batch may carry."""


class Row(NamedTuple):
    """A sequence to score."""

    token_ids: np.ndarray
    """[L] int32."""
    mask: np.ndarray
    """[L] bool, the sampled tokens."""
    versions: np.ndarray
    """[L] int32, the version that sampled each of them."""


class OldPolicyService(Protocol):
    """Returns [L] float32 for each row: log-probabilities of the sampled tokens, zero elsewhere."""

    def score(self, rows: Sequence[Row]) -> list[np.ndarray]: ...


def rows_of(group: Group) -> list[Row]:
    """Return what of a group is scored."""
    return [Row(t.token_ids, t.loss_mask, t.versions) for t in group.usable]


class OldPolicies:
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

    def score(self, engine: TrainEngine, batch: StepBatch) -> Tensor:
        """Return the log-probabilities [B,T] of the sampled tokens, each under its own version; zero elsewhere.

        A collective, equal on every rank. Raises `InfrastructureError` and `InputError` naming what is missing.
        """
        found = torch.zeros(len(batch.trajectories), max(batch.lengths), device=engine.device)
        if engine.rank == 0:
            rows = [Row(t.token_ids, t.loss_mask, t.versions) for t in batch.trajectories]
            scored = self.service.score(rows)
            for row, values in enumerate(scored):
                found[row, : len(values)] = torch.tensor(values, device=engine.device)
        engine.all_reduce(found)
        return found.cpu()

    def state_dict(self) -> dict[str, Any]:
        return {"versions": {v: dict(read_weights(weights_path(self.folder, v))) for v in self.versions}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring back the versions of a checkpoint. Every rank writes the same files, each of them at once."""
        for version, tensors in state["versions"].items():
            write_weights(self.folder, int(version), tensors.items())


class OldPolicyModel:
    """The process's side: one model that takes on the weights of whichever version is asked for."""

    def __init__(
        self, model: PolicyModel, folder: Path, temperature: float, micro_batch_tokens: int, device: str
    ) -> None:
        self.model = model.to(device)
        self.folder = folder
        self.temperature = temperature
        self.micro_batch_tokens = micro_batch_tokens
        self.device = device
        self._loaded: tuple[int, int] | None = None

    def stamp(self, version: int) -> tuple[int, int]:
        """Return what tells the file of a version from one that a restarted trainer wrote under the same number.

        Raises `InputError` where there is none.
        """
        try:
            found = weights_path(self.folder, version).stat()
        except OSError as error:
            raise InputError(f"the weights of version {version} are not in {self.folder}: {error}") from error
        return found.st_ino, found.st_mtime_ns

    @torch.no_grad()
    def score(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """See `OldPolicyService`. Raises `InputError` for a version without weights."""
        found = [np.zeros(len(row.token_ids), np.float32) for row in rows]
        there = {int(v) for row in rows for v in np.unique(row.versions[row.mask])}
        for version in sorted(there):
            self._load(version)
            chosen = [i for i, row in enumerate(rows) if (row.versions[row.mask] == version).any()]
            lengths = [len(rows[i].token_ids) for i in chosen]
            for part in plan_micro_batches(lengths, self.micro_batch_tokens, 1)[0]:
                picked = [chosen[i] for i in part]
                logp = self._forward([rows[i] for i in picked])
                for place, i in enumerate(picked):
                    here = rows[i].mask & (rows[i].versions == version)
                    found[i][here] = logp[place, : len(here)][here]
        return found

    def _forward(self, rows: Sequence[Row]) -> np.ndarray:
        """Return the log-probabilities [B,T] of the sampled tokens under the weights that are loaded."""
        shape = (len(rows), max(len(row.token_ids) for row in rows))
        token_ids, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for place, row in enumerate(rows):
            token_ids[place, : len(row.token_ids)] = row.token_ids
            mask[place, : len(row.mask)] = row.mask
        given = (torch.from_numpy(array).to(self.device) for array in (token_ids, mask))
        return self.model(*given, self.temperature)["logp"].float().cpu().numpy()

    def _load(self, version: int) -> None:
        stamp = self.stamp(version)
        if self._loaded == stamp:
            return
        self._loaded = None
        tensors = dict(read_weights(weights_path(self.folder, version)))
        for name, parameter in published(self.model.model):
            parameter.copy_(tensors[name])
        self._loaded = stamp
