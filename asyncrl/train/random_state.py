"""The random generators of every rank as tensors: Python's, NumPy's, torch's, and the accelerator's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.data.codec import pack, unpack
from asyncrl.train.deepspeed_engine import TrainEngine

PREFIX = "rng/"


def gather_random_state(engine: TrainEngine) -> dict[str, Tensor]:
    """Return `{"rng/RANK": bytes}` of every rank on rank 0, nothing on others. A collective."""
    own = np.frombuffer(pack(_state()), np.uint8)
    sizes = torch.zeros(engine.num_ranks, dtype=torch.long, device=engine.device)
    sizes[engine.rank] = len(own)
    engine.all_reduce(sizes)
    rows = torch.zeros(engine.num_ranks, int(sizes.max()), dtype=torch.uint8, device=engine.device)
    rows[engine.rank, : len(own)] = torch.from_numpy(own.copy()).to(engine.device)
    engine.all_reduce(rows)
    if engine.rank != 0:
        return {}
    return {f"{PREFIX}{rank}": row[: int(sizes[rank])].cpu().clone() for rank, row in enumerate(rows)}


def set_random_state(engine: TrainEngine, tensors: dict[str, Tensor]) -> None:
    """Restore this rank's generators; a rank without saved ones keeps those it started with."""
    saved = tensors.get(f"{PREFIX}{engine.rank}")
    if saved is not None:
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
