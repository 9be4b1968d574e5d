"""Runs the CPU worker inside vLLM's engine process, with a KV cache no larger than its requests can use.

By default vLLM's CPU platform runs the worker in a separate process, and the engine process spins on a shared-memory
queue while it waits, which costs a whole core. The separate process exists only so that OpenMP's environment can be
set before it starts; `services.engine` sets it for the engine process instead.
"""

from __future__ import annotations

from vllm.v1.executor.uniproc_executor import UniProcExecutor

CACHED_CONTEXTS = 8
"""How many full contexts the KV cache holds for each request that runs at once: also those of episodes that wait for
their environments. Beyond that a tiny model's cache would be memory that vLLM fills with zeros and nobody uses."""


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
