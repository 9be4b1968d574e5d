"""The form of a published adapter: names and configuration as in peft, which vLLM reads too. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl.config_sections import LoraConfig

TENSORS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
PREFIX = "base_model.model."
"""The prefix that peft puts before a module's name in an adapter's file."""
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks for which vLLM has buffers; a smaller adapter is padded."""


def adapter_config(lora: LoraConfig, base_model: str) -> dict[str, Any]:
    """Return the content of peft's `adapter_config.json`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(lora.target_modules),
        "bias": "none",
        "inference_mode": True,
    }


def write_adapter_config(folder: Path, lora: LoraConfig, base_model: str) -> None:
    (folder / CONFIG).write_text(json.dumps(adapter_config(lora, base_model), indent=2))


def buffer_rank(rank: int) -> int:
    """Return the smallest rank of vLLM's buffers that holds an adapter of `rank`."""
    return next(size for size in VLLM_RANKS if size >= rank)
