"""How many tokens a block of an engine's KV cache holds.

A prefix that was computed before is found again in whole blocks, so the shorter the blocks are, the fewer tokens of a
conversation's next turn are computed twice. vLLM's own choice for CPUs, 128, is longer than most turns of short
contexts.
"""

from __future__ import annotations

import platform

SHORT_CONTEXT = 1024
"""Tokens of a context up to which an engine on a CPU gets short blocks."""
GPU_TOKENS, CPU_TOKENS = 16, 128
"""vLLM's own choices."""
X86_TOKENS, OTHER_TOKENS = 16, 32
"""The shortest blocks that vLLM's CPU kernels read."""


def short_blocks(max_model_len: int) -> int:
    """Return the tokens of a block of an engine on this machine's CPU, 0 to leave the choice to vLLM."""
    if max_model_len > SHORT_CONTEXT:
        return 0
    return X86_TOKENS if on_x86() else OTHER_TOKENS


def on_x86() -> bool:
    """True on a machine whose CPU vLLM has kernels of 16 tokens for."""
    return platform.machine().lower() in ("x86_64", "amd64")
