"""Rounding of weights and activations to eight bits, the same in engines and trainer.

Weights have a scale for each output channel, activations one for each token; both are symmetric (W8A8). Everything but
the linear layers of attention and MLP stays as it is: embeddings, norms and the vocabulary projection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

LAYERS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
"""The last part of the names of layers that are quantised."""
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""The largest number of each scheme."""
TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
SMALLEST_SCALE = 1e-12
"""For rows of zeros."""


def quantize(values: Tensor, scheme: str) -> tuple[Tensor, Tensor]:
    """Return `values` [...,N] rounded to eight bits, and their scales [...,1] in float32."""
    exact = values.float()
    scales = (exact.abs().amax(-1, keepdim=True) / LARGEST[scheme]).clamp(min=SMALLEST_SCALE)
    scaled = exact / scales
    return (scaled.round() if scheme == "int8" else scaled).to(TYPES[scheme]), scales


def is_quantized(name: str) -> bool:
    """Return whether the layer of this name is."""
    return name.rpartition(".")[2] in LAYERS


def quantized_checkpoint(tensors: Iterable[tuple[str, Tensor]], scheme: str) -> Iterator[tuple[str, Tensor]]:
    """Yield a checkpoint's tensors as one in the form of compressed-tensors has them."""
    for name, tensor in tensors:
        layer, _, kind = name.rpartition(".")
        if kind == "weight" and is_quantized(layer):
            weight, scales = quantize(tensor, scheme)
            yield name, weight
            yield f"{layer}.weight_scale", scales
        else:
            yield name, tensor
