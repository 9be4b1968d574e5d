"""Train only the tokens that matter most and are least certain.

    weight = 1 if |A_t| H_t >= the (1 - share) quantile of |A| H over the step's sampled tokens, else 0

Source: the tokens of D3S, arXiv 2509.22115 (from the paper only). Its samples are the filter `max_variance`. By its
schedule the share grows from version 0 to all at version `full_at` (`grown_share`); 0 for none. The denominators count
all tokens, as those of `top_entropy` do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs, step_statistics
from asyncrl.algo.ops import quantile
from asyncrl.extensions.published.subset import grown_share


def least_score_of_step(inputs: LossInputs, share: float, full_at: int) -> dict[str, Tensor]:
    """The score from which on a token is trained, for `step_statistics`; infinity without tokens."""
    share = grown_share(share, inputs.current_version, full_at)
    found = _scores(inputs)[inputs.mask]
    return {
        "top_entropy_advantage_least": quantile(found, 1 - share)
        if found.numel()
        else found.new_tensor(torch.inf)
    }


@needs("entropy")
@step_statistics(least_score_of_step)
def top_entropy_advantage(inputs: LossInputs, *, share: float = 0.5, full_at: int = 0) -> Tensor:
    """[B,T] 1 for the tokens of the highest scores, 0 for the others."""
    found, score = inputs.statistics, _scores(inputs)
    if "top_entropy_advantage_least" not in found:
        found = least_score_of_step(inputs, share, full_at)
    return ((score >= found["top_entropy_advantage_least"]) & inputs.mask).to(score.dtype)


def _scores(inputs: LossInputs) -> Tensor:
    """[B,T] `|A| H` of each token."""
    return inputs.need("advantages").abs() * inputs.need("entropy").detach()
