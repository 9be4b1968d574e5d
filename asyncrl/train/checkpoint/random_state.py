"""The random generators of every rank as tensors: Python's, NumPy's, torch's, and the accelerator's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.data.codec import pack, unpack

PREFIX = "rng/"


def random_state(rank: int) -> dict[str, Tensor]:
    """Return `{"rng/RANK": bytes}` of this rank."""
    return {key_of(rank): torch.from_numpy(np.frombuffer(pack(_state()), np.uint8).copy())}


def key_of(rank: int) -> str:
    return f"{PREFIX}{rank}"


def set_random_state(saved: Tensor) -> None:
    """Restore this rank's generators from what it saved."""
    _restore(unpack(saved.numpy().tobytes()))


def _state() -> dict[str, Any]:
    kind, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [kind, list(numbers), gauss],
        "numpy": [name, np.asarray(keys).tobytes(), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state().numpy().tobytes(),
        "cuda": torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_available() else b"",
    }


def _restore(state: dict[str, Any]) -> None:
    kind, numbers, gauss = state["python"]
    random.setstate((kind, tuple(numbers), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
    torch.set_rng_state(torch.from_numpy(np.frombuffer(state["torch"], np.uint8).copy()))
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(np.frombuffer(state["cuda"], np.uint8).copy()))
