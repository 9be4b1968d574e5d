"""The `shared_file` weight-transfer backend: the vLLM worker maps a safetensors file and reloads its model from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from asyncrl.weights.files import read_weights
from asyncrl.weights.staging import copies_of_machine
from asyncrl.weights.vllm_conversions import converted
from asyncrl.weights.vllm_cpu import weights_changed
from asyncrl.weights.vllm_direct_writes import LostWrites, keep_sinks

# At each update it would report tied heads and rotary tables, which have no weights of their own.
logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


@dataclass
class SharedFileInitInfo(WeightTransferInitInfo):
    """Nothing to negotiate: the path comes with each update."""


@dataclass
class SharedFileUpdateInfo(WeightTransferUpdateInfo):
    """The path of the new weights. The route that accepts them has verified the checksum."""

    path: str
    """On the machine of the engine's server."""
    epoch: int = 0
    version: int = 0
    """By which a worker finds its machine's copy."""


class SharedFileEngine(WeightTransferEngine[SharedFileInitInfo, SharedFileUpdateInfo]):
    """Loads every tensor of the file through the model's own `load_weights`, layer by layer."""

    init_info_cls = SharedFileInitInfo
    update_info_cls = SharedFileUpdateInfo

    def init_transfer_engine(self, init_info: SharedFileInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Prepare the model for new weights in the form of a checkpoint.

        vLLM's layerwise reload processes each layer again once its weights are there, as at the start, and copies the
        result to where the old one lies, so that CUDA graphs stay valid. Written in place, what layers derive from
        their weights (scales, MLA's projections, repacked tensors) would stay that of the old version.
        """
        initialize_layerwise_reload(self.model)
        keep_sinks(self.model)

    def receive_weights(self, update_info: SharedFileUpdateInfo) -> None:
        """Load the file's tensors into the model."""
        copies = copies_of_machine()
        path = update_info.path if copies is None else copies.path_of(update_info.epoch, update_info.version)
        tensors = converted(read_weights(path), self.model_config, self.device)
        with LostWrites() as writes:
            self.model.load_weights(tensors)  # type: ignore[operator]
        writes.check(self.model)

    def update_weights(self, update_info: dict) -> None:
        """Receive one update. The base class then synchronises an accelerator, which a CPU lacks."""
        if self.device.type == "cpu":
            self.receive_weights(self.parse_update_info(update_info))
        else:
            super().update_weights(update_info)

    def finish_weight_update(self) -> None:
        """Process what is left. Between the start and here the model cannot compute: after an error it is lost."""
        kept = list(_not_loaded(self.model))
        finalize_layerwise_reload(self.model, self.model_config)
        for layer, name, tensor in kept:
            getattr(layer, name).data.copy_(tensor)
        weights_changed()

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _not_loaded(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """Yield what layers held whose file gives them only other tensors: vLLM would leave these uninitialised."""
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if not info.can_load() or not info.loaded_weights or info.kernel_tensors is None:
            continue
        loaded = {name for name, _ in info.loaded_weights}
        for name, tensor in info.kernel_tensors[0].items():
            expected = getattr(layer, name, None)
            if name not in loaded and expected is not None and expected.shape == tensor.shape:
                yield layer, name, tensor.detach().clone()
