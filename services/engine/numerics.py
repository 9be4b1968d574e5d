"""How an engine computes beyond the type of its weights: quantised, and independently of its batches."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from asyncrl.config_sections import EngineConfig
from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu
from asyncrl.weights.vllm_plugin import QUANTIZATION

EXACT_INT8 = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
"""Linux's names of x86 instructions that add eight-bit products in 32 bits. Others add two in 16 bits and saturate."""


class Numerics(Protocol):
    """The settings, as an engine's options or its section of a recipe have them."""

    @property
    def quantization(self) -> str: ...
    @property
    def batch_invariant(self) -> bool: ...


def check_numerics(chosen: Numerics) -> None:
    """Raise `ConfigError` for what this machine's vLLM cannot compute."""
    if chosen.batch_invariant and on_cpu():
        raise ConfigError(
            "engine.batch_invariant: vLLM's batch-invariant kernels need a GPU, and this is its build for CPUs; set it "
            "to false"
        )


def int8_saturates(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this machine's engines compute sums of int8 products wrong where they are large, as oneDNN does on
    a CPU of x86 without `EXACT_INT8`. False on GPUs."""
    if not on_cpu() or platform.machine() != "x86_64" or not cpu.exists():
        return False
    return not EXACT_INT8 & set(cpu.read_text().split())


def numerics_warning(engine: EngineConfig) -> str:
    """Return what is wrong with the int8 of a run's engines on this machine, "" if nothing is."""
    if engine.quantization == "int8":
        key = "engine.quantization"
    elif engine.explorers and engine.explorers_quantization == "int8":
        key = "engine.explorers_quantization"
    else:
        return ""
    if not int8_saturates():
        return ""
    return (
        f"warning: {key}='int8': this CPU has no VNNI, so large sums of eight-bit products saturate in the "
        "engine, and its log-probabilities are far from the trainer's; use 'fp8', or a CPU with VNNI"
    )


def numerics_arguments(chosen: Numerics) -> list[str]:
    """Return vLLM's arguments. Raises `ConfigError`."""
    check_numerics(chosen)
    if chosen.quantization == "off":
        return []
    # It imports torch, which an engine's service does not need otherwise.
    from asyncrl.weights.quantization import quantization_config

    return ["--hf-overrides", json.dumps({"quantization_config": quantization_config(chosen.quantization)})]


def numerics_variables(chosen: Numerics) -> Mapping[str, str]:
    """Return environment variables of the vLLM server."""
    found = {}
    if chosen.quantization != "off":
        found[QUANTIZATION] = chosen.quantization
    if chosen.batch_invariant:
        found["VLLM_BATCH_INVARIANT"] = "1"
    return found
