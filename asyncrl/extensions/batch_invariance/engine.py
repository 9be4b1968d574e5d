"""What an engine is started with whose kernels do not depend on its batches."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.gpus import on_cpu
from asyncrl.services.engine.additions import Addition


def batch_invariant(config: Config, publishes: bool) -> Addition:
    """Return what has vLLM choose these kernels. Raises `ConfigError` where this machine's vLLM has none."""
    if on_cpu():
        raise ConfigError(
            "engine.batch_invariant: vLLM's batch-invariant kernels need a GPU, and this is its build for CPUs; set it "
            "to false"
        )
    return Addition(variables={"VLLM_BATCH_INVARIANT": "1"})
