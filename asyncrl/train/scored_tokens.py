"""Log-probabilities of tokens under past versions, found by what a token is: the version and all tokens up to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from asyncrl.weights.sampled import TOKEN


def prefix_hashes(token_ids: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return for each of the places [N], in ascending order, the hash of all tokens up to that one. [N] uint64.

    Of ten million tokens two have the same hash with a probability of 3e-6.
    """
    data, hashed = memoryview(np.ascontiguousarray(token_ids, TOKEN).tobytes()), xxhash.xxh3_64()
    found, begin = np.empty(len(places), np.uint64), 0
    for number, place in enumerate(places.tolist()):
        end = (place + 1) * TOKEN.itemsize
        hashed.update(data[begin:end])
        found[number], begin = hashed.intdigest(), end
    return found


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
