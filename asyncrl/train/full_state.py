"""A policy's optimizer state as whole tensors by parameter name, for any number of ranks and any ZeRO stage.

DeepSpeed keeps flat partitions, and its universal checkpoints convert them offline into many files. Gathering each
tensor during the run gives one safetensors file that any number of ranks and any stage can load.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor, nn

from asyncrl.errors import InputError
from asyncrl.train.deepspeed_engine import TrainEngine

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's running means, as torch names them."""
WEIGHT = "weight"


def gather_state(engine: TrainEngine) -> dict[str, Tensor]:
    """Return `{"weight/NAME", "exp_avg/NAME", "exp_avg_sq/NAME", "adam_step"}` as float32 CPU copies on rank 0.

    A collective. Other ranks get an empty dictionary. Before the first optimizer step there are only weights.
    """
    found: dict[str, Tensor] = {}
    kinds = (WEIGHT, *(MOMENTS if _steps(engine) else ()))
    for name, parameter in _trained(engine):
        for kind in kinds:
            tensor = _get(engine, parameter, kind)
            if engine.rank == 0:
                found[f"{kind}/{name}"] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
    if engine.rank == 0:
        found["adam_step"] = torch.tensor(float(_steps(engine)))
    return found


def load_state(engine: TrainEngine, tensors: dict[str, Tensor]) -> None:
    """Put a gathered state back; `tensors` must be the same on every rank.

    Raises `InputError` naming the first parameter that is missing or has another shape; nothing has changed then.
    """
    if "adam_step" not in tensors:
        raise InputError(
            "checkpoint: holds no optimizer state of this engine; was it made by another recipe?"
        )
    steps = int(tensors["adam_step"])
    kinds = (WEIGHT, *(MOMENTS if steps else ()))
    for name, parameter in _trained(engine):
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        for kind in kinds:
            given = tensors.get(f"{kind}/{name}")
            if given is None or tuple(given.shape) != shape:
                what = "is missing" if given is None else f"has shape {tuple(given.shape)}, expected {shape}"
                raise InputError(f"checkpoint: {kind} of {name} {what}; was it made by another model?")
    if steps:
        _make_moments(engine, steps)
    for name, parameter in _trained(engine):
        for kind in kinds:
            _set(engine, parameter, kind, tensors[f"{kind}/{name}"].to(engine.device))


def _trained(engine: TrainEngine) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in engine.engine.module.named_parameters():
        if parameter.requires_grad:
            engine.progress.mark()
            yield name, parameter


def _base_optimizer(engine: TrainEngine) -> Any:
    """Return torch's optimizer inside DeepSpeed's."""
    return getattr(engine.engine.optimizer, "optimizer", engine.engine.optimizer)


def _steps(engine: TrainEngine) -> int:
    """Count of optimizer steps taken, which Adam's bias correction reads."""
    return max(
        (int(state["step"]) for state in _base_optimizer(engine).state.values() if "step" in state), default=0
    )


def _make_moments(engine: TrainEngine, steps: int) -> None:
    """Create Adam's state, which torch does only at the first step."""
    base = _base_optimizer(engine)
    # ZeRO-3 lends torch's optimizer its flat partitions only during a step.
    flat = getattr(engine.engine.optimizer, "fp32_partitioned_groups_flat", None)
    for parameter in flat or [p for group in base.param_groups for p in group["params"]]:
        state = base.state[parameter]
        state["step"] = torch.tensor(float(steps))
        for kind in MOMENTS:
            if kind not in state:
                state[kind] = torch.zeros_like(parameter)
    link = getattr(engine.engine.optimizer, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None:
        link()


def _get(engine: TrainEngine, parameter: nn.Parameter, kind: str) -> Tensor:
    if engine.stage == 0:
        return parameter if kind == WEIGHT else _base_optimizer(engine).state[parameter][kind]
    return (
        safe_get_full_fp32_param(parameter)
        if kind == WEIGHT
        else safe_get_full_optimizer_state(parameter, kind)
    )


def _set(engine: TrainEngine, parameter: nn.Parameter, kind: str, value: Tensor) -> None:
    stage = engine.stage
    if kind != WEIGHT:
        if stage == 0:
            _base_optimizer(engine).state[parameter][kind].copy_(value)
        else:
            safe_set_full_optimizer_state(parameter, value, kind)
        return
    gathered = (
        deepspeed.zero.GatheredParameters([parameter], modifier_rank=0) if stage == 3 else nullcontext()
    )
    with gathered, torch.no_grad():
        if stage != 3 or engine.rank == 0:
            parameter.data.copy_(value)
    if stage:
        safe_set_full_fp32_param(parameter, value)
