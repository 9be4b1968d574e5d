"""The policy of an earlier version, from the file by which its weights were published to the engines.

The publisher keeps the file of the previous version. If it can be read, a forward pass runs with its weights, while the
trained ones stay untouched. Not under ZeRO-3, where no rank holds whole parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.func import functional_call

from asyncrl.train.checkpoint_form import from_checkpoint
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.lora import published
from asyncrl.weights.files import read_weights, weights_path

Scorer = Callable[[Tensor, Tensor, float], dict[str, Tensor]]
"""Token ids [B,T], mask [B,T] and temperature to `logp` [B,T], as `PolicyModel.forward`."""


def readable(engine: TrainEngine, folder: Path | None, versions: Iterable[int]) -> list[int]:
    """Return those of `versions` whose weights every rank finds and has room for. A collective."""
    wanted = sorted(versions)
    if folder is None or engine.stage == 3 or not wanted:
        return []
    found = torch.tensor([int(_fits(engine, weights_path(folder, v))) for v in wanted], device=engine.device)
    engine.all_reduce(found, "min")
    return [version for version, there in zip(wanted, found.tolist(), strict=True) if there]


def load_earlier_policy(engine: TrainEngine, folder: Path, version: int) -> Scorer | None:
    """Return the forward pass of an earlier version; None on all ranks where one cannot read it. A collective."""
    module = engine.engine.module
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    weights: dict[str, Tensor] = {}
    try:
        file = dict(read_weights(weights_path(folder, version)))
        for name, parameter in published(module.model):
            tensor = from_checkpoint(module.model, name, parameter, file)
            weights[names[id(parameter)]] = tensor.to(parameter.device, parameter.dtype)
    except (OSError, SafetensorError, KeyError):
        weights = {}
    whole = torch.tensor([int(bool(weights))], device=engine.device)
    engine.all_reduce(whole, "min")
    if not int(whole):
        return None

    def score(token_ids: Tensor, mask: Tensor, temperature: float) -> dict[str, Tensor]:
        given = (token_ids.to(engine.device), mask.to(engine.device), temperature)
        return functional_call(module, weights, given)

    return score


def _fits(engine: TrainEngine, path: Path) -> bool:
    """True when the file exists and an accelerator has twice its size free, as the forward pass needs memory, too."""
    try:
        num_bytes = path.stat().st_size
    except OSError:
        return False
    return engine.device.type != "cuda" or torch.cuda.mem_get_info(engine.device)[0] > 2 * num_bytes
