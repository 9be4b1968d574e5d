"""Train only the tokens at which the policy was least certain.

    weight = 1 if H_t >= the (1 - share) quantile of H over the step's sampled tokens, else 0

Source: "Beyond the 80/20 Rule", arXiv 2506.01939 (share 0.2); TRL `top_entropy_quantile`, whose quantile has the same
linear interpolation but is that of a micro-batch. The denominators count all tokens, as in TRL.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs, step_statistics
from asyncrl.algo.ops import quantile


def least_entropy_of_step(inputs: LossInputs, share: float) -> dict[str, Tensor]:
    """The entropy from which on a token is trained, for `step_statistics`; infinity without tokens."""
    if not 0 < share <= 1:
        raise ValueError(f"share must be in (0, 1], got {share}")
    entropy = inputs.need("entropy").detach()[inputs.mask]
    least = quantile(entropy, 1 - share) if entropy.numel() else entropy.new_tensor(torch.inf)
    return {"top_entropy_least": least}


@needs("entropy")
@step_statistics(least_entropy_of_step)
def top_entropy(inputs: LossInputs, *, share: float = 0.2) -> Tensor:
    """[B,T] 1 for the tokens of highest entropy, 0 for the others."""
    found = inputs.statistics
    found = found if "top_entropy_least" in found else least_entropy_of_step(inputs, share)
    entropy = inputs.need("entropy").detach()
    return ((entropy >= found["top_entropy_least"]) & inputs.mask).to(entropy.dtype)
