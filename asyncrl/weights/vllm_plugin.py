"""Entry point of the vLLM plugin (`vllm.general_plugins`); vLLM calls `register` in each of its processes.

It adds the weight-transfer backend `shared_file` and, on CPU, keeps linear layers on the live weight:
vLLM would otherwise repack weights into oneDNN handles at load, which an update leaves stale, so outputs
would match neither the old nor the new model. It also replaces the CPU backend's application of LoRA adapters.

In servers that asyncrl starts, every process also ends with the one that started it: vLLM's engine process would
otherwise outlive a server that was killed, with its memory.
"""

from __future__ import annotations

import os

from asyncrl.parent import die_with_parent

BACKEND = "shared_file"
PUNICA = "asyncrl.weights.vllm_punica.GroupedPunica"
STARTED_BY_US = "ASYNCRL_BASE_VERSION"
"""Environment variable that `asyncrl serve engine` sets."""


def register() -> None:
    """Register the backend once, make CPU linear layers updatable, and end with the parent process."""
    if STARTED_BY_US in os.environ:
        die_with_parent()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm import _custom_ops

        _custom_ops._supports_onednn = False
        setattr(current_platform, "get_punica_wrapper", lambda: PUNICA)  # noqa: B010 - mypy forbids to assign it
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "asyncrl.weights.vllm_backend", "SharedFileEngine"
        )
