"""REINFORCE: the reward itself, for every token.

Also the neutral choice for losses that ignore advantages.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import group_local
from asyncrl.algo.ops import to_tokens


@group_local
def reinforce(batch: AdvantageBatch) -> Tensor:
    """[B,T] `A_i = R_i`."""
    return to_tokens(batch.returns, batch.mask)
