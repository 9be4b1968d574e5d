"""What a user's module may look like: library functions under other names, and functions of its own."""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs, step_statistics
from asyncrl.extensions.published.correction.m2po import m2po as second_moment
from asyncrl.extensions.published.loss.sat import sat as adaptive_region
from asyncrl.extensions.published.proximal.ewma import ewma as averaged

__all__ = ["adaptive_region", "averaged", "largest_of_step", "second_moment"]


def largest(inputs: LossInputs, scale: float) -> dict[str, Tensor]:
    return {"largest": scale * inputs.mismatch_log_ratio[inputs.mask].abs().max()}


@needs("behavior")
@needs("entropy", with_entropy=True)
@step_statistics(largest)
def largest_of_step(inputs: LossInputs, *, scale: float = 2.0, with_entropy: bool = False) -> Tensor:
    """[B,T] the same weight for every token: the largest mismatch of the step."""
    del scale, with_entropy
    return inputs.statistics["largest"].expand_as(inputs.mask)
