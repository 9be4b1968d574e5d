"""What an engine is started with that commits to hidden states."""

from __future__ import annotations

from asyncrl.config import Config
from asyncrl.services.engine.additions import Addition


def committing(config: Config, publishes: bool) -> Addition:
    """Return what has the engine's processes record states."""
    # vLLM's second model runner, for GPUs, does not keep the states where they are recorded.
    return Addition(variables={"ASYNCRL_RECORD_STATES": "1", "VLLM_USE_V2_MODEL_RUNNER": "0"})
