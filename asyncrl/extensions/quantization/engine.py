"""What a vLLM server is started with that computes in eight bits. Torch-free."""

from __future__ import annotations

import json
from typing import Any

from asyncrl.config import Config
from asyncrl.extensions.quantization.settings import VARIABLE, QuantizationConfig
from asyncrl.services.engine.additions import Addition


def quantizing(config: Config, publishes: bool) -> Addition:
    """Return what has vLLM compute so, and its processes quantise what they load."""
    scheme = config.section(QuantizationConfig).quantization
    overrides = {"quantization_config": quantization_config(scheme)}
    return Addition(("--hf-overrides", json.dumps(overrides)), {VARIABLE: scheme})


def quantization_config(scheme: str) -> dict[str, Any]:
    """Return the `quantization_config` in the `config.json` of a checkpoint as `rounding` makes it."""
    form = {"num_bits": 8, "type": "int" if scheme == "int8" else "float", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if scheme == "int8" else "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": form | {"strategy": "channel", "dynamic": False},
                "input_activations": form | {"strategy": "token", "dynamic": True},
            }
        },
        "ignore": ["lm_head"],
    }
