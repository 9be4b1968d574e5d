"""Runs the CPU worker inside vLLM's engine process, with a KV cache no larger than its requests can use.

The cache's memory is taken as it is used.

By default vLLM's CPU platform runs the worker in a separate process, and the engine process spins on a shared-memory
queue while it waits, which costs a whole core. The separate process exists only so that OpenMP's environment can be
set before it starts; `services.engine` sets it for the engine process instead.
"""

from __future__ import annotations

import mmap
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import KVCacheConfig

CACHED_CONTEXTS = 8
"""How many full contexts the KV cache holds for each request that runs at once: also those of episodes that wait for
their environments. Nobody uses more of a tiny model's cache."""


class InProcessExecutor(UniProcExecutor):
    """`UniProcExecutor` under a name of its own: the CPU platform replaces the plain one by "mp"."""

    def determine_available_memory(self) -> list[int]:
        """Return the bytes for the KV cache of the one worker."""
        (available,) = super().determine_available_memory()
        (layers,) = self.get_kv_cache_specs()
        tokens = self.vllm_config.model_config.max_model_len
        context = sum(layer.page_size_bytes * -(-tokens // layer.block_size) for layer in layers.values())
        requests = self.vllm_config.scheduler_config.max_num_seqs
        return [min(available, CACHED_CONTEXTS * requests * context)]

    def initialize_from_config(self, kv_cache_configs: list[KVCacheConfig]) -> None:
        """Allocate the KV cache."""
        with LazyZeros():
            super().initialize_from_config(kv_cache_configs)


class LazyZeros(TorchFunctionMode):
    """Has `torch.zeros` of bytes, as vLLM allocates its cache, take memory that the system zeroes at its first use.

    To fill a gigabyte takes half a second, more than all else that a tiny model's engine does to start.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.zeros or kwargs.get("dtype") is not torch.int8 or len(args) != 1:
            return func(*args, **kwargs)
        # Private, so that no process it is forked into sees what is written, and at the beginning of a page, as
        # kernels may read whole cache lines.
        memory = mmap.mmap(-1, args[0], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=torch.int8)
