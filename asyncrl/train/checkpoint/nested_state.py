"""Nested state (dictionaries, lists, numbers, tensors) as JSON and a flat dictionary of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
