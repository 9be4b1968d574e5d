"""SPO: one rollout per prompt against a tracked success rate.

    v = alpha / (alpha + beta) before the update,  A = R - v, then standardised over the batch (`normalize`)
    alpha <- rho alpha + R,  beta <- rho beta + 1 - R,  rho = clip(2^(-D / D_half), rho_min, rho_max)

D is the mean |log pi_then - log pi_now| on the prompt's previous response: a policy that moved forgets
faster. Source: arXiv 2509.13232 (D_half 0.06, rho 0.875..0.96, prompts sampled in proportion to sqrt(v (1 -
v)) + 0.05). Rewards must lie in [0, 1].
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import to_tokens


@needs("baselines")
def spo(batch: AdvantageBatch) -> Tensor:
    """[B,T] `R - baseline`, with the tracked baselines of the batch."""
    return to_tokens(batch.returns - batch.need("baselines"), batch.mask)
