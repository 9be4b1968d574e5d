"""Has vLLM normalise by its C kernels on CPUs, too.

vLLM has them there, and computes by torch all the same, which for a small model costs a tenth of an engine's time.
Only float32 is taken over: of shorter types the kernels round differently from torch, and so from the trainer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PROVIDER = "asyncrl_cpu"
"""What vLLM calls these implementations."""


def normalise_by_kernels(platform: Any) -> None:
    """Register the kernels and let vLLM's `platform` prefer them."""
    import vllm._custom_ops  # noqa: F401 - loads the kernels
    from vllm import ir

    # Not every build for CPUs has them.
    if PROVIDER in ir.ops.rms_norm.impls or not hasattr(torch.ops._C, "fused_add_rms_norm"):
        return
    ir.ops.rms_norm.register_impl(PROVIDER, supports_args=takes)(rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=takes_sum, inplace=True)(
        fused_add_rms_norm
    )
    choose = platform.get_default_ir_op_priority

    def prefer(vllm_config: Any) -> Any:
        found = choose(vllm_config)
        for name in ("rms_norm", "fused_add_rms_norm"):
            setattr(found, name, [PROVIDER, *getattr(found, name)])
        return found

    setattr(platform, "get_default_ir_op_priority", prefer)  # noqa: B010 - mypy forbids to assign it


def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
    """Return `x` [...,H] normalised over H."""
    # The kernel reads rows one after the other; heads that were cut out of a larger tensor are not.
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty_like(rows)
    torch.ops._C.rms_norm(out, rows, weight, epsilon)
    return out.view(x.shape)


def fused_add_rms_norm(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of both [...,H], normalised over H, and the sum itself, in their memory."""
    torch.ops._C.fused_add_rms_norm(x, x_residual, weight, epsilon)
    return x, x_residual


def takes(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
    """True for what the kernel normalises as torch does."""
    return weight is not None and variance_size is None and x.dtype == weight.dtype == torch.float32


def takes_sum(
    x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    """True for what the kernel adds and normalises as torch does, where it may overwrite both."""
    contiguous = x.is_contiguous() and x_residual.is_contiguous()
    return contiguous and x_residual.dtype == torch.float32 and takes(x, weight, epsilon, variance_size)
