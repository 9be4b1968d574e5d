"""The settings of quantised engines, keys of `[engine]` and `[train]`."""

from __future__ import annotations

from typing import Literal

from asyncrl.config_sections import Section, Seldom

VARIABLE = "ASYNCRL_QUANTIZATION"
"""Environment variable of a vLLM server with the scheme by which it quantises."""


class QuantizationConfig(Section):
    """A key of `[engine]`."""

    quantization: Seldom[Literal["off", "int8", "fp8"]] = "off"
    """Eight bits for the weights and activations of linear layers while sampling. The trainer keeps and publishes whole
    weights (docs/engine-and-trainer.md)."""


class QuantizedForwardConfig(Section):
    """A key of `[train]`."""

    quantized_forward: Seldom[bool] = True
    """Round in the trainer's forward passes as engines with `engine.quantization` do. False for comparison: the policy
    that samples is then another one than that which is trained."""
