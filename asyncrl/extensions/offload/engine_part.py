"""`train.offload`: states, and with them the weights, in host memory, or in that of files on a local disk, of which the
kernel keeps what there is room for.

DeepSpeed's own NVMe offload is not used: with 0.19.8 a model large enough to be swapped trained to other losses than
without. A mapped file is memory like any other to DeepSpeed and its optimizers, so that nothing is computed otherwise.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from asyncrl.errors import ConfigError, StorageError
from asyncrl.train.engine.engine_parts import EnginePart


class Offloaded(EnginePart):
    """Has ZeRO keep states in host memory."""

    def settings(self) -> dict[str, dict[str, Any]]:
        """See `EnginePart`."""
        # What moves on into files is not pinned: the kernel must be free to write it out.
        pinned = torch.cuda.is_available() and not self.train.offload_folder
        kinds = {"optimizer": ("optimizer",), "parameters": ("optimizer", "param")}[self.train.offload]
        return {
            "zero_optimization": {
                f"offload_{kind}": {"device": "cpu", "pin_memory": pinned} for kind in kinds
            }
        }

    def made(self, engine: Any, optimizer: Optimizer) -> None:
        """See `EnginePart`."""
        if self.train.offload_folder:
            files = OffloadFiles(Path(self.train.offload_folder))
            files.take(engine)
            optimizer.register_step_post_hook(lambda stepped, *_: files.take_moments(stepped))


class OffloadFiles:
    """Moves tensors into files of a folder. The files have no name, so that nothing is left of them after a kill.

    Raises `ConfigError` where the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._moments: dict[tuple[int, str], torch.UntypedStorage] = {}
        """Files of moments by the weights they belong to and their name."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(f"train.offload_folder: {error}") from error

    def take(self, engine: Any) -> None:
        """Move what a DeepSpeed engine of ZeRO-3 keeps in host memory before its first step.

        Tensors stay the objects they are; those that shared memory share it again. Raises `StorageError` where the disk
        is full.
        """
        moved: dict[int, torch.UntypedStorage] = {}
        for tensor in _kept_on_host(engine):
            storage = tensor.untyped_storage()
            if tensor.device.type == "cpu" and storage.nbytes():
                if storage.data_ptr() not in moved:
                    moved[storage.data_ptr()] = self._in_file(storage)
                _put(tensor, moved[storage.data_ptr()])

    def take_moments(self, optimizer: Optimizer) -> None:
        """Move the moments of the weights that an optimizer has just stepped, where they are new: made by the first
        step, or loaded. Raises `StorageError` where the disk is full."""
        for flat in (flat for group in optimizer.param_groups for flat in group["params"]):
            for name, moment in optimizer.state[flat].items():
                if not isinstance(moment, Tensor) or not moment.ndim or moment.device.type != "cpu":
                    continue
                storage, held = moment.untyped_storage(), self._moments.get((id(flat), name))
                # What is held here is not freed, so that other memory cannot have its address.
                if held is None or held.data_ptr() != storage.data_ptr():
                    self._moments[id(flat), name] = self._in_file(storage)
                    _put(moment, self._moments[id(flat), name])

    def _in_file(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        size = storage.nbytes()
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                # A mapping of a sparse file would end the process by SIGBUS where the disk is full later.
                os.posix_fallocate(file.fileno(), 0, size)
                mapping = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise StorageError(
                f"train.offload_folder: no room for {size / 2**20:,.0f} MiB more in {self.folder}: {error}"
            ) from error
        found = torch.frombuffer(mapping, dtype=torch.uint8)
        found.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))  # type: ignore[call-overload]
        return found.untyped_storage()


def _put(tensor: Tensor, storage: torch.UntypedStorage) -> None:
    """Let a tensor have the same elements of other memory."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(storage)  # type: ignore[call-overload]
    tensor.data = whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _kept_on_host(engine: Any) -> Iterator[Tensor]:
    """Yield float32 weights, their gradients and the model's own shards, wherever they are."""
    optimizer = engine.optimizer
    for flat in optimizer.fp32_partitioned_groups_flat:
        yield flat
        if flat.grad is not None:
            yield flat.grad
    yield optimizer.grad_partitions_flat_buffer
    yield from optimizer._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition.values()
    yield from optimizer.param_groups_fp16_flat_cpu_memory
    yield from optimizer.fp16_partitioned_groups_flat
    yield from (parameter.ds_tensor for parameter in engine.module.parameters())
