"""On-policy distillation: the student samples, a teacher scores.

    sampled:  l = -r_b sg[log T - log pi]                     reverse KL as a policy gradient, r_b = pi / mu
    full:     l = Σ_v pi (log pi - log T)                      reverse; also forward and Jensen-Shannon

Sources: "On-Policy Distillation" (Thinking Machines), GKD arXiv 2306.13649. The sampled form needs one
teacher log-probability per token, which an engine can serve; its gradient on-policy is the reverse KL's. A
plain mean of `log pi - log T` would have zero expected gradient. The full form needs logits over the
vocabulary.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import at_least_float32, bounded_ratio


def full_kl(student_logits: Tensor, teacher_logits: Tensor, direction: str = "reverse") -> Tensor:
    """[...] KL over the last dimension: "reverse" KL(pi||T), "forward" KL(T||pi), "jsd" at one half.

    Logits of -inf have probability zero; value and gradient stay finite wherever the divergence is.
    """
    log_pi = torch.log_softmax(at_least_float32(student_logits), -1)
    log_t = torch.log_softmax(at_least_float32(teacher_logits.detach()), -1)
    if direction == "reverse":
        return _kl(log_pi, log_t)
    if direction == "forward":
        return _kl(log_t, log_pi)
    if direction == "jsd":
        neither = (log_pi == -torch.inf) & (log_t == -torch.inf)
        log_mix = torch.logaddexp(log_pi.masked_fill(neither, 0.0), log_t.masked_fill(neither, 0.0))
        log_mix = log_mix.masked_fill(neither, -torch.inf) - math.log(2)
        return 0.5 * (_kl(log_pi, log_mix) + _kl(log_t, log_mix))
    raise ValueError(f"direction must be 'reverse', 'forward' or 'jsd', got {direction!r}")


def _kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    # 0 log 0 is 0, with a gradient of 0: what is filled in sends none back. A NaN is no -inf and stays one.
    gap = (log_p - log_q).masked_fill(log_p == -torch.inf, 0.0)
    return (log_p.exp() * gap).sum(-1)


@needs("teacher", "behavior")
def opd_sampled(inputs: LossInputs) -> LossOutputs:
    """Reverse KL on the sampled tokens."""
    gap = inputs.need("teacher_logp").detach() - inputs.logp.detach()
    loss = -bounded_ratio(inputs.behavior_log_ratio) * gap
    return LossOutputs(loss * inputs.mask, {"teacher/kl_k1": mean_over(-gap, inputs.mask)})


@needs("teacher_logits")
def opd_full(
    inputs: LossInputs, *, direction: Literal["reverse", "forward", "jsd"] = "reverse"
) -> LossOutputs:
    """KL over the whole vocabulary at every sampled position.

    The trainer computes it with `full_kl` and this `direction` where it has the logits, a chunk of tokens at a time.
    """
    kl = inputs.need("teacher_kl") * inputs.mask
    return LossOutputs(kl, {"teacher/kl_full": mean_over(kl, inputs.mask)})
