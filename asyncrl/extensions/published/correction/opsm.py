"""Off-policy sequence masking: drop failures that the current policy has moved away from.

    drop sequence i  if  A_i < 0  and  mean_t(log mu - log pi) > delta

Source: DeepSeek-V3.2; TRL and slime. pi is the *current* policy. delta has no common default. The sign of a
sequence is that of its mean token advantage.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import mean_log_ratio, to_tokens


def opsm_keep(inputs: LossInputs, delta: float) -> tuple[Tensor, Tensor]:
    """`(keep [B] bool, mean log mu - log pi [B])`."""
    drift = mean_log_ratio(-inputs.behavior_log_ratio.detach(), inputs.mask)
    negative = (inputs.need("advantages") * inputs.mask).sum(-1) < 0
    return ~(negative & (drift > delta)), drift


@needs("behavior")
def opsm(inputs: LossInputs, *, delta: float) -> Tensor:
    """[B,T] 0 for dropped sequences, else 1."""
    keep, _ = opsm_keep(inputs, delta)
    return to_tokens(keep.to(inputs.logp.dtype), inputs.mask)
