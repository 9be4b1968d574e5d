"""PPO clip and its relatives: dual clip, DAPO clip-higher.

    l = max(-A r, -A clip(r, 1 - eps_low, 1 + eps_high)),   r = exp(clamp(log pi - log pi_old, ±20))
    dual clip, A < 0 only:  l <- min(l, -c A)

Sources: PPO arXiv 1707.06347; dual clip arXiv 1912.09729 (c = 3); DAPO arXiv 2503.14476 (eps 0.2 / 0.28).
The gradient is -A r, and 0 where the clip binds, beyond r > c with A < 0, and outside the log-ratio clamp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import Metrics, extreme_over, mean_over
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import LOG_RATIO_CLAMP, bounded_ratio


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, low: Tensor | float, high: Tensor | float
) -> tuple[Tensor, Tensor]:
    """The pessimistic surrogate [B,T] and where the clip binds. `low` and `high` bound the ratio itself.

    At ratio 1 both terms tie; `torch.where` then keeps the unclipped one and with it the full gradient.
    """
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, low, high)  # type: ignore[arg-type]
    binds = clipped > unclipped
    return torch.where(binds, clipped, unclipped), binds


def ratio_metrics(inputs: LossInputs, ratio: Tensor) -> Metrics:
    """`ratio/mean`, `ratio/max`, `ratio/min` and `kl/proximal_to_current` (k1) over sampled tokens."""
    return {
        "ratio/mean": mean_over(ratio, inputs.mask),
        "ratio/max": extreme_over(ratio, inputs.mask, "max"),
        "ratio/min": extreme_over(ratio, inputs.mask, "min"),
        "kl/proximal_to_current": mean_over(-inputs.log_ratio, inputs.mask),
    }


@needs("proximal")
@weighed_by_advantage
def ppo_clip(
    inputs: LossInputs,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    dual_clip: float | None = None,
    log_ratio_clamp: float = LOG_RATIO_CLAMP,
) -> LossOutputs:
    """PPO clip; with `dual_clip` the loss of negative advantages is capped at `-c A`."""
    adv = inputs.need("advantages")
    ratio = bounded_ratio(inputs.log_ratio, log_ratio_clamp)
    loss, binds = clipped_surrogate(ratio, adv, 1 - eps_low, 1 + eps_high)
    capped = torch.zeros_like(binds)
    if dual_clip is not None:
        if dual_clip <= 1:
            raise ValueError(f"dual_clip must be greater than 1, got {dual_clip}")
        bound = -dual_clip * adv
        capped = (adv < 0) & (loss > bound)
        loss = torch.where(capped, bound, loss)
    mask = inputs.mask
    metrics = ratio_metrics(inputs, ratio) | {
        "clip_fraction": mean_over(binds, mask),
        "clip_fraction/upper": mean_over(binds & (adv > 0), mask),
        "clip_fraction/lower": mean_over(binds & (adv < 0), mask),
        "clip_fraction/dual": mean_over(capped, mask),
    }
    return LossOutputs(loss * mask, metrics, {"clipped": (binds | capped) & mask, "ratio": ratio.detach()})


@needs("proximal")
@weighed_by_advantage
def dapo_clip(
    inputs: LossInputs, *, eps_low: float = 0.2, eps_high: float = 0.28, dual_clip: float | None = 10.0
) -> LossOutputs:
    """Clip-higher: PPO clip with DAPO's wider upper bound and a loose dual clip."""
    return ppo_clip(inputs, eps_low=eps_low, eps_high=eps_high, dual_clip=dual_clip)
