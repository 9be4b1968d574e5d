"""How many tokens a block of an engine's KV cache holds.

A prefix that was computed before is found again in whole blocks, so the shorter the blocks are, the fewer tokens of a
conversation's next turn are computed twice. vLLM's own choice for CPUs, 128, is longer than most turns of short
contexts.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

SHORT_CONTEXT = 1024
"""Tokens of a context up to which an engine on a CPU gets short blocks."""
GPU_TOKENS, CPU_TOKENS = 16, 128
"""vLLM's own choices."""
X86_TOKENS, OTHER_TOKENS = 16, 32
"""The shortest blocks that vLLM's CPU kernels read."""

LONG_CONTEXT, LONG_TOKENS = 32_768, 64
"""Tokens of a context from which an engine on a GPU gets longer blocks, and how long they are: each turn hashes all
blocks of its context, in the process that also schedules."""
OTHER_CACHES = ("kv_lora_rank", "mamba", "ssm", "linear_", "index_", "compress")
"""Parts of the names by which a model's configuration says that its cache is not of keys and values alone, or not of
each token: vLLM's kernels for it have blocks of their own."""
ATTENTIONS = {"full_attention", "sliding_attention", "chunked_attention"}


def long_blocks(max_model_len: int, model: Mapping[str, Any]) -> int:
    """Return the tokens of a block of an engine on a GPU, 0 to leave the choice to vLLM. model: its `config.json`."""
    model = {**model, **model.get("text_config", {})}
    plain = "num_attention_heads" in model and ATTENTIONS.issuperset(model.get("layer_types") or ())
    others = any(part in name for name in model for part in OTHER_CACHES)
    return LONG_TOKENS if max_model_len >= LONG_CONTEXT and plain and not others else 0


def short_blocks(max_model_len: int) -> int:
    """Return the tokens of a block of an engine on this machine's CPU, 0 to leave the choice to vLLM."""
    if max_model_len > SHORT_CONTEXT:
        return 0
    return X86_TOKENS if on_x86() else OTHER_TOKENS


def on_x86() -> bool:
    """True on a machine whose CPU vLLM has kernels of 16 tokens for."""
    return platform.machine().lower() in ("x86_64", "amd64")
