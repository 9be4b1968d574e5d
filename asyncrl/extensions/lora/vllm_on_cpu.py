"""What each process of a vLLM server on a CPU is told of adapters."""

from __future__ import annotations

PUNICA = "asyncrl.extensions.lora.vllm_punica.GroupedPunica"


def group_adapters() -> None:
    """Have a CPU apply adapters by `vllm_punica`, which vLLM imports where it serves some."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        setattr(current_platform, "get_punica_wrapper", lambda: PUNICA)  # noqa: B010 - mypy forbids to assign it
