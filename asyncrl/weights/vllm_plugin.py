"""Entry point of the vLLM plugin (`vllm.general_plugins`); vLLM calls `register` in each of its processes.

It adds the weight-transfer backend `shared_file` and, on CPU, keeps linear layers on the live weight:
vLLM would otherwise repack weights into oneDNN handles at load, which an update leaves stale, so outputs
would match neither the old nor the new model.
"""

from __future__ import annotations

BACKEND = "shared_file"


def register() -> None:
    """Register the backend once and make CPU linear layers updatable."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from vllm import _custom_ops

        _custom_ops._supports_onednn = False
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "asyncrl.weights.vllm_backend", "SharedFileEngine"
        )
