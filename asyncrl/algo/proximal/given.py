"""Proximal log-probabilities that the trainer computed with a forward pass, or that need none.

| name | proximal policy | forward passes |
|---|---|---|
| recompute | the policy at the start of the step | one, `LossInputs.proximal_logp` |
| snapshot | the version that sampled the token, kept as a copy | one per version, `snapshot_logp` |
| ewma | an exponentially weighted average of past policies | one, `proximal_logp` |
| behavior | the engine's own log-probabilities: PPO on mu, no split into mismatch and staleness | none |
"""

from __future__ import annotations

from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs


@needs("step_start")
def recompute(inputs: LossInputs) -> Tensor:
    """[B,T] log-probabilities of the policy at the start of the step."""
    return inputs.need("proximal_logp")


@needs("snapshots")
def snapshot(inputs: LossInputs) -> Tensor:
    """[B,T] log-probabilities recomputed with the weights of the version that sampled the token."""
    return inputs.need("snapshot_logp")


@needs("average")
def ewma(inputs: LossInputs, *, beta: float | None = None, reset_below: float = 0.9) -> Tensor:
    """[B,T] log-probabilities of the averaged policy (PPO-EWMA).

    The parameters are for the trainer, which keeps the average: its decay (None follows the staleness of each batch)
    and the share of tokens with a gradient below which it returns to the current policy.
    """
    del beta, reset_below
    return inputs.need("proximal_logp")


@needs("behavior")
def behavior(inputs: LossInputs) -> Tensor:
    """[B,T] the engine's log-probabilities."""
    return inputs.need("behavior_logp")
