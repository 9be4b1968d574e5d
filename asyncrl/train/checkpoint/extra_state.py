"""What a checkpoint has besides weights and moments.

Nested state (dictionaries, lists, numbers, tensors) as JSON and a flat dictionary of tensors, and the random generators
of every rank as tensors: Python's, NumPy's, torch's, and the accelerator's.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.data.codec import pack, unpack

PREFIX = "rng/"
"""Of the names of the generators' tensors."""


def split(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Return `value` as JSON; its tensors are copied to the CPU and added to `tensors` under names below `path`.

    Dictionary keys may be strings or integers. Raises TypeError for what JSON cannot hold.
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"map": [[key, split(item, tensors, f"{path}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [split(item, tensors, f"{path}/{number}") for number, item in enumerate(value)]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"state {path}: {type(value).__name__} cannot be kept in a checkpoint")


def join(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Undo `split`; tuples come back as lists."""
    if isinstance(value, dict):
        if "tensor" in value:
            return torch.as_tensor(tensors[value["tensor"]])
        return {key: join(item, tensors) for key, item in value["map"]}
    if isinstance(value, list):
        return [join(item, tensors) for item in value]
    return value


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
