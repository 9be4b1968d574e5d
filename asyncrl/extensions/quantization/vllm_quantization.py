"""Loading a model that is not quantised into an engine that is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from asyncrl.extensions.quantization.rounding import quantized_checkpoint
from asyncrl.extensions.quantization.settings import VARIABLE

FP8_GPU = 89
"""Compute capability from which on GPUs multiply eight-bit floats."""


def quantized_as_published(
    tensors: Iterator[tuple[str, Tensor]], device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Yield published tensors quantised, on the device of the worker."""
    moved = ((name, tensor.to(device)) for name, tensor in tensors)
    return quantized_checkpoint(moved, os.environ[VARIABLE])


def quantize_at_start() -> None:
    """Have vLLM quantise what it reads of a model's folder."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.platforms import current_platform

    scheme = os.environ[VARIABLE]
    read: Any = DefaultModelLoader.get_all_weights

    def get_all_weights(self: Any, model_config: Any, model: Any) -> Iterator[tuple[str, Tensor]]:
        if (
            scheme == "fp8"
            and current_platform.is_cuda()
            and not current_platform.has_device_capability(FP8_GPU)
        ):
            raise ValueError(
                "engine.quantization: on a GPU without FP8 arithmetic vLLM rounds weights alone for 'fp8', and the "
                "trainer would not compute the same; use 'int8'"
            )
        # First to the type that the trainer quantises from.
        tensors = ((name, tensor.to(model_config.dtype)) for name, tensor in read(self, model_config, model))
        return quantized_checkpoint(tensors, scheme)

    setattr(DefaultModelLoader, "get_all_weights", get_all_weights)  # noqa: B010 - mypy forbids to assign it
