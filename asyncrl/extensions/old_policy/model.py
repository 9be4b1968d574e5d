"""One model that takes on the weights of whichever version is asked for: the old-policy process's part of
`asyncrl.extensions.old_policy.old_policies`. Imports no deepspeed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from asyncrl.data.micro_batches import plan_micro_batches
from asyncrl.errors import InputError
from asyncrl.train.models.checkpoint_form import published
from asyncrl.train.models.policy import PolicyModel
from asyncrl.types import Group
from asyncrl.weights.files import read_weights, weights_path

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


def rows_of(group: Group) -> list[Row]:
    """Return what of a group is scored."""
    return [Row(t.token_ids, t.loss_mask, t.versions) for t in group.usable]


class OldPolicyModel:
    """Scores sequences. temperature: that of the rollouts. micro_batch_tokens: padded tokens of one forward pass."""

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
        """Return [L] float32 for each row: log-probabilities of the sampled tokens, zero elsewhere.

        Raises `InputError` for a version without weights.
        """
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
