"""Int8 layers of vLLM's CPU backend (W8A8): right on every CPU of x86, and with the scales of the last update."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

EXACT_INT8 = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
"""Linux's names of x86 instructions that add eight-bit products in 32 bits. Others add two in 16 bits and saturate."""


def int8_saturates(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether oneDNN's products of int8 matrices are wrong on this CPU where their sums are large: on one of x86
    without `EXACT_INT8`."""
    if platform.machine() != "x86_64" or not cpu.exists():
        return False
    return not EXACT_INT8 & set(cpu.read_text().split())


def halves(weights_KN: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 matrices `(high, low)` with `weights_KN = 2 * high + low`.

    oneDNN shifts activations to 0..255. With weights within -64..63, two products fit into 16 bits.
    """
    # It is stored by columns, and oneDNN packs it in that order.
    weights_NK = weights_KN.t()
    return (weights_NK >> 1).contiguous().t(), (weights_NK & 1).contiguous().t()


class SplitProduct:
    """Stands where vLLM keeps the handle of one matrix, for a product in two parts that do not saturate.

    Both are added in float32. They take twice the memory of the matrix, and twice the time.
    """

    def __init__(
        self, create: Any, weights_KN: Tensor, scales: Tensor, dynamic: bool, zero_point: bool, cache: int
    ):
        high_KN, low_KN = halves(weights_KN)
        self.k, self.n = weights_KN.shape
        self.scales = scales
        self.doubled_scales = 2 * scales
        self.high = create(high_KN, self.doubled_scales, torch.float32, dynamic, False, cache)
        self.low = create(low_KN, scales, torch.float32, dynamic, zero_point, cache)

    def multiply(
        self,
        multiply: Any,
        tokens: Tensor,
        out: Tensor,
        token_scales: Any,
        zero_points: Any,
        adjustment: Any,
        bias: Any,
    ) -> Tensor:
        high, low = (torch.empty(out.shape, dtype=torch.float32) for _ in range(2))
        multiply(self.high, tokens, high, token_scales, None, None, None)
        # The adjustment for zero points is that of the whole matrix, and is subtracted once.
        multiply(self.low, tokens, low, token_scales, zero_points, adjustment, None)
        high += low
        if bias is not None:
            high += bias
        return out.copy_(high)


def mend_int8() -> None:
    """Have int8 layers compute right. Called in each process of vLLM; once is enough.

    A handle of oneDNN has only the address of its scales. At the start they are the layer's own; a reload copies new
    ones to where the layer's lie and would free those that the new handle points to. So handles keep them.
    """
    from vllm import _custom_ops

    create, multiply = _custom_ops.create_onednn_scaled_mm, _custom_ops.onednn_scaled_mm
    if create.__module__ == __name__:
        return
    split = int8_saturates()

    def create_kept(
        weights_KN: Tensor, scales: Tensor, out_type: Any, dynamic: bool, zero_point: bool, cache: int = 128
    ) -> Any:
        if split:
            return SplitProduct(create, weights_KN, scales, dynamic, zero_point, cache)
        handle: Any = create(weights_KN, scales, out_type, dynamic, zero_point, cache)
        handle.scales = scales
        return handle

    def multiply_kept(handle: Any, *rest: Any) -> Tensor:
        product: Tensor
        product = (
            handle.multiply(multiply, *rest) if isinstance(handle, SplitProduct) else multiply(handle, *rest)
        )
        return product

    setattr(_custom_ops, "create_onednn_scaled_mm", create_kept)  # noqa: B010 - mypy forbids to assign it
    setattr(_custom_ops, "onednn_scaled_mm", multiply_kept)  # noqa: B010 - mypy forbids to assign it
