"""SPIRAL: the return against a running mean of the returns of the same role in the same game.

    A = R - b(game, role),  then  b <- decay b + (1 - decay) R,  b = 0 at first

Source: arXiv 2506.24119 (role-conditioned advantage estimation, decay 0.95): in a zero-sum game the first player may
win more often whoever plays it, so one mean for both roles would credit the seat. It needs no group: one episode of a
task is enough. Returns are scored before they enter the mean, one after the other.
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.advantage_batch import AdvantageBatch
from asyncrl.algo.needs import needs
from asyncrl.algo.ops import to_tokens


@needs("role_baselines")
def spiral(batch: AdvantageBatch) -> Tensor:
    """[B,T] `R - b`, with the running means of the rows' roles."""
    return to_tokens(batch.returns - batch.need("role_baselines"), batch.mask)
