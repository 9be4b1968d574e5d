"""Log-probabilities by liger-kernel's fused vocabulary projection and cross-entropy.

A Triton kernel turns a chunk of logits into losses and gradients in place: no copy in float32 is made, and the logits
are computed twice, as in `asyncrl.train.models.token_scores`. It reads nothing but the labels' log-probabilities, so
the plain way remains where an objective wants entropy or a teacher's distribution, and where logits are scaled or
bounded: the kernel knows no temperature, and hidden states scaled before the projection would be rounded differently.

liger-kernel's own autograd function keeps the gathered weights of ZeRO-3 from forward to backward; this one takes them
anew. Versions of liger-kernel before 0.8 gave the weights a wrong gradient where tokens have gradients of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.train.models.token_scores import AFTER_PROJECTION, Compared, Head


def can_fuse(
    head: Head, temperature: float, want: tuple[str, ...], tokens: int, compared: Compared | None = None
) -> bool:
    """True where the kernel computes all that is wanted of so many tokens."""
    changed = any(getattr(head.config, name, None) is not None for name in AFTER_PROJECTION)
    plain = type(head.module) is nn.Linear and head.module.bias is None and not changed
    whole = compared is not None or bool({"entropy", "sum_pi_squared"} & set(want))
    return plain and temperature == 1.0 and tokens > 0 and not whole


def fused_logp(
    head: Head,
    labels: Tensor,
    project: Callable[[Tensor], Tensor],
    parameters: list[nn.Parameter],
    states: Tensor,
) -> dict[str, Tensor]:
    """Return `logp` [N] in float32 of `labels` [N] after `states` [N,H], as `score_tokens` does. A `use` of `Head`."""
    weight: Any = head.module.weight
    return {"logp": _Fused.apply(head, labels, states.contiguous(), weight)}


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, head: Head, labels: Tensor, states: Tensor, weight: Tensor) -> Tensor:
        ctx.head, ctx.labels = head, labels
        ctx.save_for_backward(states)
        return -_cross_entropy(head, labels, states, compute_gradients=False)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (states,) = ctx.saved_tensors
        _, _, _, _, of_states, of_weight, _ = _cross_entropy(
            ctx.head, ctx.labels, states, compute_gradients=True,
            weight_requires_grad=ctx.needs_input_grad[3], token_grad_output=-grad,
        )  # fmt: skip
        return None, None, of_states, of_weight


def _cross_entropy(head: Head, labels: Tensor, states: Tensor, **more: Any) -> Any:
    """The gradient of the weights is summed over chunks in float32: in bfloat16 each of them would cost digits."""
    from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward

    weight: Any = head.module.weight
    return fused_linear_cross_entropy_forward(
        states.detach(),
        weight.detach(),
        labels,
        reduction="none",
        accum_dtype=torch.float32,
        **more,
    )
