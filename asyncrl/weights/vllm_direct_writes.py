"""What vLLM's layerwise reload misses: loaders that copy into a parameter themselves, past its `weight_loader`.

During a reload parameters have no storage. Such a copy is lost without a word, and the old weights stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

_SINKS = ("sinks", "attention_sink_bias")
"""Parameters of gpt-oss and MiMo whose loaders write them directly. Kernels read them as they are."""

_FUSED_EXPERTS = re.compile(r"(.*\.mlp\.experts)\.((?:gate_up|down)_proj(?:_bias)?)")
"""gpt-oss's, in the names of its checkpoint."""


def keep_sinks(model: torch.nn.Module) -> None:
    """Let a reload write attention sinks where they lie. Called between its start and the loading."""
    for layer in model.modules():
        parameters, _ = get_layerwise_info(layer).kernel_tensors or ({}, {})
        for name in _SINKS:
            if name in parameters:
                delattr(layer, name)
                layer.register_parameter(name, cast(torch.nn.Parameter, parameters[name]))


def split_experts(
    weights: Iterable[tuple[str, torch.Tensor]], device: torch.device | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield gpt-oss's experts one by one, which its loader passes to `weight_loader`; fused it writes directly."""
    for name, tensor in weights:
        fused = _FUSED_EXPERTS.fullmatch(name)
        if fused is None:
            yield name, tensor
        else:
            for number, expert in enumerate(tensor):
                yield f"{fused[1]}.{number}.{fused[2]}", expert


class LostWrites(TorchDispatchMode):
    """Sees what is written while a reload loads, so that `check` can refuse to go on where some of it was lost."""

    def __init__(self) -> None:
        super().__init__()
        self._written: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].is_meta:
            self._written.add(args[0].untyped_storage()._cdata)
        return func(*args, **kwargs or {})

    def check(self, model: torch.nn.Module) -> None:
        """Raise `NotImplementedError` with the parameters that were written and that the reload knows nothing of."""
        lost = [
            f"{prefix}.{name}".removeprefix(".")
            for prefix, layer in model.named_modules()
            for name, parameter in layer.named_parameters(recurse=False)
            if parameter.is_meta
            and parameter.untyped_storage()._cdata in self._written
            and name not in {loaded for loaded, _ in get_layerwise_info(layer).loaded_weights}
        ]
        if lost:
            raise NotImplementedError(
                f"vLLM's loader of {type(model).__name__} writes {', '.join(lost[:4])} past the reload of weights, so "
                "an update would leave the old ones in place: this model cannot be trained with this version of vLLM"
            )
