"""M2PO: mask the tokens with the largest squared mismatch until their second moment is under a threshold.

    sort (log mu - log pi_old)² over sampled tokens; drop from the top until the mean of the rest < threshold

Source: arXiv 2510.01161 (0.04); AReaL. At least one token stays. The sort runs over the micro-batch, or
uses the cut of the whole step when `statistics["m2po_cutoff"]` is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs, step_statistics


def m2po_kept_count(ordered: Tensor, threshold: float) -> int:
    """How many of the squared log-ratios, sorted ascending [n], stay; at least 1 unless empty."""
    count = torch.arange(1, ordered.numel() + 1, device=ordered.device)
    below = (ordered.cumsum(0) / count) < threshold
    # The means of the smallest k grow with k, so the largest k below the threshold is their number.
    return max(int(below.sum()), min(1, ordered.numel()))


def m2po_cutoff(squared: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Scalar: the largest squared log-ratio that stays; infinity when nothing is sampled."""
    ordered = squared[mask].sort().values
    if not ordered.numel():
        return squared.new_tensor(torch.inf)
    return ordered[m2po_kept_count(ordered, threshold) - 1]


def m2po_mask(squared: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """[B,T] bool: exactly the kept tokens; among equal values the later positions go first."""
    flat = mask.flatten().nonzero().squeeze(-1)
    values = squared.flatten()[flat]
    order = values.sort(stable=True)
    kept = torch.zeros_like(mask).flatten()
    kept[flat[order.indices[: m2po_kept_count(order.values, threshold)]]] = True
    return kept.view_as(mask)


def cutoff_of_step(inputs: LossInputs, threshold: float) -> dict[str, Tensor]:
    """The cut of the whole step, for `step_statistics`."""
    return {"m2po_cutoff": m2po_cutoff(inputs.mismatch_log_ratio**2, inputs.mask, threshold)}


@needs("behavior")
@step_statistics(cutoff_of_step)
def m2po(inputs: LossInputs, *, threshold: float = 0.04) -> Tensor:
    """[B,T] 1 for kept tokens, 0 for dropped ones."""
    squared = inputs.mismatch_log_ratio**2
    cutoff = inputs.statistics.get("m2po_cutoff")
    if cutoff is not None:
        return (inputs.mask & (squared <= cutoff)).to(squared.dtype)
    return m2po_mask(squared, inputs.mask, threshold).to(squared.dtype)
