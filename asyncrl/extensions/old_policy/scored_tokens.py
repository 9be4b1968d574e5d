"""Log-probabilities of tokens under past versions, found by what a token is: the version and all tokens up to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of SplitMix64."""


def prefix_hashes(token_ids: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return for each of the places [N] the hash of all tokens up to that one. [N] uint64.

    A hash is the sum of what SplitMix64 (Steele et al. 2014) makes of each token and its place. Of ten million tokens
    two have the same with a probability of 3e-6.
    """
    numbers = np.arange(1, len(token_ids) + 1, dtype=np.uint64)
    mixed = (numbers << np.uint64(32) | np.asarray(token_ids).astype(np.uint64)) * GOLDEN
    for shift, factor in MIXING:
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    return np.cumsum(mixed ^ mixed >> np.uint64(31), dtype=np.uint64)[places]


class ScoredTokens:
    """Log-probabilities of some versions' tokens, in host memory: 12 bytes a token."""

    def __init__(self) -> None:
        self._versions: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Hashes [N] uint64, ascending, and log-probabilities [N] float32."""

    @property
    def versions(self) -> list[int]:
        return sorted(self._versions)

    def num_tokens(self, version: int) -> int:
        return len(self._versions[version][0]) if version in self._versions else 0

    def add(self, version: int, hashes: np.ndarray, logprobs: np.ndarray) -> None:
        """Keep the log-probabilities [N] of tokens; of a token that is given twice the first."""
        known = self._versions.get(version, (np.empty(0, np.uint64), np.empty(0, np.float32)))
        unique, first = np.unique(np.concatenate([known[0], hashes]), return_index=True)
        self._versions[version] = unique, np.concatenate([known[1], logprobs]).astype(np.float32)[first]

    def find(self, version: int, hashes: np.ndarray) -> np.ndarray:
        """Return the log-probabilities [N] float32 of tokens, NaN for those that are not known."""
        found = np.full(len(hashes), np.nan, np.float32)
        if not self.num_tokens(version):
            return found
        known, logprobs = self._versions[version]
        places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        here = known[places] == hashes
        found[here] = logprobs[places[here]]
        return found

    def drop_before(self, version: int) -> None:
        """Forget all earlier versions."""
        self._versions = {v: kept for v, kept in self._versions.items() if v >= version}

    def state_dict(self) -> dict[str, Any]:
        return {
            "versions": {
                version: {
                    "hashes": torch.from_numpy(hashes.view(np.int64)),
                    "logprobs": torch.from_numpy(logprobs),
                }
                for version, (hashes, logprobs) in self._versions.items()
            }
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._versions = {
            int(version): (kept["hashes"].numpy().view(np.uint64), kept["logprobs"].numpy())
            for version, kept in state["versions"].items()
        }
