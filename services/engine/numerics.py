"""How an engine computes beyond the type of its weights: quantised, and independently of its batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu
from asyncrl.weights.vllm_plugin import QUANTIZATION


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
