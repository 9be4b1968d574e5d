"""The `shared_file` weight-transfer backend: the vLLM worker maps a safetensors file and loads it in place."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from asyncrl.weights.files import read_weights


@dataclass
class SharedFileInitInfo(WeightTransferInitInfo):
    """Nothing to negotiate: the path comes with each update."""


@dataclass
class SharedFileUpdateInfo(WeightTransferUpdateInfo):
    """The path of the new weights. The route that accepts them has verified the checksum."""

    path: str


class SharedFileEngine(WeightTransferEngine[SharedFileInitInfo, SharedFileUpdateInfo]):
    """Loads every tensor of the file through the model's own `load_weights`, in place."""

    init_info_cls = SharedFileInitInfo
    update_info_cls = SharedFileUpdateInfo

    def init_transfer_engine(self, init_info: SharedFileInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Weights are written in place; no layer is reloaded."""

    def receive_weights(self, update_info: SharedFileUpdateInfo) -> None:
        """Load the file's tensors into the model."""
        self.model.load_weights(  # type: ignore[operator]
            read_weights(update_info.path)
        )

    def update_weights(self, update_info: dict) -> None:
        """Receive one update. The base class then synchronises an accelerator, which a CPU lacks."""
        if self.device.type == "cpu":
            self.receive_weights(self.parse_update_info(update_info))
        else:
            super().update_weights(update_info)

    def finish_weight_update(self) -> None:
        """Nothing is deferred."""

    def shutdown(self) -> None:
        """Nothing is held between updates."""
