"""Host memory of `train.offload` that is that of files, on a local disk: the kernel keeps of it what there is room for.

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

from asyncrl.errors import ConfigError, StorageError


class OffloadFiles:
    """Moves tensors into files of a folder. The files have no name, so that nothing is left of them after a kill.

    Raises `ConfigError` where the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mapped: set[int] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise ConfigError(f"train.offload_folder: {error}") from error

    def take(self, engine: Any) -> None:
        """Move what a DeepSpeed engine of ZeRO-3 keeps in host memory, but for what is in a file already.

        Tensors stay the objects they are; those that shared memory share it again. Raises `StorageError` where the disk
        is full.
        """
        moved: dict[int, torch.UntypedStorage] = {}
        here: set[int] = set()
        for tensor in _kept_on_host(engine):
            storage = tensor.untyped_storage()
            place = storage.data_ptr()
            if tensor.device.type != "cpu" or not storage.nbytes():
                continue
            if place not in self._mapped | here:
                if place not in moved:
                    moved[place] = self._in_file(storage)
                whole = torch.empty(0, dtype=tensor.dtype).set_(moved[place])  # type: ignore[call-overload]
                tensor.data = whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
            here.add(tensor.untyped_storage().data_ptr())
        # Addresses of what has been let go of may be given to other memory.
        self._mapped = here

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


def _kept_on_host(engine: Any) -> Iterator[Tensor]:
    """Yield float32 weights, their gradients and moments, and the model's own shards, wherever they are."""
    optimizer = engine.optimizer
    for flat in optimizer.fp32_partitioned_groups_flat:
        yield flat
        if flat.grad is not None:
            yield flat.grad
    for state in optimizer.optimizer.state.values():
        yield from (tensor for tensor in state.values() if isinstance(tensor, Tensor) and tensor.ndim)
    yield optimizer.grad_partitions_flat_buffer
    yield from optimizer._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition.values()
    yield from optimizer.param_groups_fp16_flat_cpu_memory
    yield from optimizer.fp16_partitioned_groups_flat
    yield from (parameter.ds_tensor for parameter in engine.module.parameters())
