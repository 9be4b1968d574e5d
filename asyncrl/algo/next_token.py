"""What training reads of the next-token distributions p = softmax(z): log-probability, entropy, sum of squares.

    log p_y,                      d/dz = 1[v = y] - p
    H = -Σ_v p_v log p_v,         d/dz = -p (log p + H)
    S = Σ_v p_v²,                 d/dz = 2 p (p - S)

All stay finite, gradients too, where logits are -inf: such a token has probability zero, and 0 log 0 is 0. Autograd of
the written-out formulas would give NaN there, and keep several tensors of the size of the logits where one is enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from asyncrl.algo.ops import at_least_float32


class NextTokenScores(NamedTuple):
    """One number a distribution, each [N] and differentiable."""

    logp: Tensor
    entropy: Tensor | None
    sum_pi_squared: Tensor | None


def next_token_scores(
    logits: Tensor, labels: Tensor, entropy: bool = False, sum_pi_squared: bool = False
) -> NextTokenScores:
    """Score logits [N,V] and the tokens `labels` [N] chosen from them; what is not asked for is None, in nats."""
    logp, h, s = _Scores.apply(at_least_float32(logits), labels, entropy, sum_pi_squared)
    return NextTokenScores(logp, h if entropy else None, s if sum_pi_squared else None)


class _Scores(torch.autograd.Function):
    """Keeps log p [N,V] for the backward pass, and nothing else of that size."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, entropy: bool, sum_pi_squared: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        log_p = torch.log_softmax(logits, dim=-1)
        logp = log_p.gather(-1, labels[:, None]).squeeze(-1)
        h, s = torch.zeros_like(logp), torch.zeros_like(logp)
        if entropy or sum_pi_squared:
            p = log_p.exp()
            h = torch.special.entr(p).sum(-1) if entropy else h
            s = p.square_().sum(-1) if sum_pi_squared else s
        ctx.save_for_backward(log_p, labels, h, s)
        ctx.set_materialize_grads(False)
        return logp, h, s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        grad_logp, grad_h, grad_s = grads
        log_p, labels, h, s = ctx.saved_tensors
        p = log_p.exp()
        linear = torch.zeros_like(h)
        rest = None
        if grad_logp is not None:
            linear -= grad_logp
        if grad_h is not None:
            # -p log p is finite at p = 0, where log p is not.
            linear -= grad_h * h
            rest = torch.special.entr(p).mul_(grad_h[:, None])
        if grad_s is not None:
            linear -= 2 * grad_s * s
            squares = p.square().mul_(2 * grad_s[:, None])
            rest = squares if rest is None else rest.add_(squares)
        grad = p.mul_(linear[:, None])
        if rest is not None:
            grad += rest
        if grad_logp is not None:
            grad.scatter_add_(-1, labels[:, None], grad_logp[:, None])
        return grad, None, None, None
