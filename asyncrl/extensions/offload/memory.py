"""Moves what a trainer holds on its device to the host and back, so that an engine can use the memory meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum
from torch import Tensor

from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.weights.files import HostCopies

KINDS = (
    OffloadStateTypeEnum.hp_params,
    OffloadStateTypeEnum.optim_states,
    OffloadStateTypeEnum.lp_params,
)
_HOST: WeakKeyDictionary[TrainEngine, HostCopies] = WeakKeyDictionary()
"""Pinned memory for the states of each engine, which stays from one turn to the next: pages that are fresh take several
times as long, and pinning them longer still."""


def to_host(engine: TrainEngine) -> None:
    """Move the optimizer's states to the host, with the float32 and the model's own weights where DeepSpeed can.

    Publish before or after: the weights can be read in both places, but for ZeRO-3, which leaves the model's own shards
    where they are. Train only after `to_device`. Both may be called again without effect. Call on every rank.
    """
    optimizer = engine.engine.optimizer
    if _deepspeed_moves(engine):
        engine.engine.offload_states(include=KINDS, pin_memory=torch.cuda.is_available())
        return
    if engine.stage == 3:
        # DeepSpeed's own move insists on its fused Adam.
        optimizer.empty_partition_cache()
    _move(engine, away=True)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def to_device(engine: TrainEngine) -> None:
    """Move everything back. Call on every rank."""
    optimizer = engine.engine.optimizer
    if not _deepspeed_moves(engine):
        _move(engine, away=False)
        return
    engine.engine.reload_states()
    if optimizer._hp_optimizer_states_linked:
        # Reloading links the parameters to their float32 weights again, and forgets the moments.
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _deepspeed_moves(engine: TrainEngine) -> bool:
    return engine.stage in (1, 2) and hasattr(engine.engine.optimizer, "offload_states")


def _move(engine: TrainEngine, away: bool) -> None:
    """Move the moments and, where there are any, the float32 weights, in place: others hold references to them."""
    optimizer: Any = engine.engine.optimizer
    if engine.stage == 3 and optimizer.offload_optimizer:
        # They are in host memory all the time.
        return
    masters = "fp32_partitioned_groups_flat" if engine.stage == 3 else "fp32_groups_flat_partition"
    states = getattr(optimizer, "optimizer", optimizer).state.values()
    moments = (tensor for state in states for tensor in state.values() if isinstance(tensor, torch.Tensor))
    moving = [*getattr(optimizer, masters, ()), *(tensor for tensor in moments if tensor.ndim)]
    if away:
        put_on_host(moving, _HOST.setdefault(engine, HostCopies()))
    else:
        for tensor in moving:
            tensor.data = tensor.data.to(engine.device, non_blocking=True)
    if isinstance(optimizer, BF16_Optimizer):
        _follow(optimizer, away)


def put_on_host(tensors: Sequence[Tensor], host: HostCopies, always: bool = False) -> None:
    """Have tensors hold the same values in host memory, which `host` keeps for the next turn.

    always: those that are there already, too. Tensors must not share memory.
    """
    found = host.of([(str(id(tensor)), tensor.data) for tensor in tensors], always)
    for tensor in tensors:
        # Of those without elements only one is named.
        tensor.data = found.get(str(id(tensor)), tensor.data)


def _follow(optimizer: Any, away: bool) -> None:
    """Let go of the float32 gradients or take them back, and link the parameters to what has moved."""
    for flat in optimizer.fp32_groups_gradients_flat:
        # Between steps they are zero. All their views share this storage.
        flat.untyped_storage().resize_(0 if away else flat.numel() * flat.element_size())
        if not away:
            flat.zero_()
    optimizer._link_all_hp_params()
    if optimizer._hp_optimizer_states_linked:
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
