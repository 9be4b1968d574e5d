"""What an engine is started with whose KV cache reaches into host memory.

vLLM loads blocks back from there, instead of computing them anew.
"""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.extensions.kv_offload.settings import KvOffloadConfig
from asyncrl.gpus import on_cpu
from asyncrl.services.engine.additions import Addition


def offloading(config: Config, publishes: bool) -> Addition:
    """Return what gives the cache its tier. Raises `ConfigError` where this machine's vLLM has none."""
    if on_cpu():
        raise ConfigError(
            "engine.kv_offload_gib: vLLM offloads the KV cache of GPUs alone, and this is its build for CPUs; set it "
            "to 0"
        )
    return Addition(("--kv-offloading-size", f"{config.section(KvOffloadConfig).kv_offload_gib:g}"))
