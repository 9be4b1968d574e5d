"""What vLLM's CPU backend needs so that updated weights are the ones that compute, and MLA is right."""

from __future__ import annotations

import sys
from typing import Any

import torch

from asyncrl.weights.vllm_int8 import mend_int8

_EXPERTS = "vllm.model_executor.layers.fused_moe.experts.cpu_moe"

_packed: dict[tuple[int, str], torch.Tensor] = {}
"""Experts' weights in the form the kernels read, by the address of the live ones."""


def keep_weights_live() -> None:
    """Have layers compute from the parameters that an update writes, not from copies made at load.

    Linear layers would be repacked into oneDNN handles and experts into blocked layouts, of which an update knows
    nothing: outputs would match neither the old nor the new model.
    """
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    mend_int8()
    pack, compute = _custom_ops.cpu_prepack_moe_weight, _custom_ops.cpu_fused_moe

    def packed(weight: torch.Tensor, isa: str) -> torch.Tensor:
        key = (weight.data_ptr(), isa)
        if key not in _packed:
            _packed[key] = pack(weight, isa)
        return _packed[key]

    def compute_packed(
        output: Any, tokens: Any, w13: Any, w2: Any, b13: Any, b2: Any, weights: Any, ids: Any, act: Any, isa: str,
        *rest: Any,
    ) -> Any:  # fmt: skip
        return compute(
            output, tokens, packed(w13, isa), packed(w2, isa), b13, b2, weights, ids, act, isa, *rest
        )

    replaced = {"cpu_prepack_moe_weight": lambda weight, isa: weight, "cpu_fused_moe": compute_packed}
    # Importing the module of the experts takes long, and most models have none.
    for module in (_custom_ops, *filter(None, [sys.modules.get(_EXPERTS)])):
        for name, function in replaced.items():
            setattr(module, name, function)


def weights_changed() -> None:
    """Pack experts again from now on. Called after each update."""
    _packed.clear()


def rotate_heads_by_torch() -> None:
    """Rotate queries that are split into heads, as those of MLA, by torch: vLLM's CPU kernel is wrong for them beyond
    the first token."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    by_kernel = RotaryEmbedding.forward_cpu

    def forward(self: Any, positions: Any, query: Any, key: Any = None) -> Any:
        if query.dim() == 2:
            return by_kernel(self, positions, query, key)
        return self.forward_native(positions, query, key)

    setattr(RotaryEmbedding, "forward_cpu", forward)  # noqa: B010 - mypy forbids to assign it
