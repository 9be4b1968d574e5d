"""How an engine computes beyond the type of its weights: independently of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu


class Numerics(Protocol):
    """The settings, as an engine's options or its section of a recipe have them."""

    @property
    def batch_invariant(self) -> bool: ...


def check_numerics(chosen: Numerics) -> None:
    """Raise `ConfigError` for what this machine's vLLM cannot compute."""
    if chosen.batch_invariant and on_cpu():
        raise ConfigError(
            "engine.batch_invariant: vLLM's batch-invariant kernels need a GPU, and this is its build for CPUs; set it "
            "to false"
        )


def numerics_variables(chosen: Numerics) -> Mapping[str, str]:
    """Return environment variables of the vLLM server."""
    return {"VLLM_BATCH_INVARIANT": "1"} if chosen.batch_invariant else {}
