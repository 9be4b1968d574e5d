"""A tier of the KV cache in host memory: vLLM loads blocks back from there, instead of computing them anew."""

from __future__ import annotations

from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu


def check_kv_offload(kv_offload_gib: float) -> None:
    """Raise `ConfigError` where this machine's vLLM has no such tier."""
    if kv_offload_gib and on_cpu():
        raise ConfigError(
            "engine.kv_offload_gib: vLLM offloads the KV cache of GPUs alone, and this is its build for CPUs; set it "
            "to 0"
        )


def kv_offload_arguments(kv_offload_gib: float) -> list[str]:
    """Return vLLM's arguments. Raises `ConfigError`."""
    check_kv_offload(kv_offload_gib)
    return ["--kv-offloading-size", f"{kv_offload_gib:g}"] if kv_offload_gib else []
