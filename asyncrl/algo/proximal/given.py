"""Proximal log-probabilities that the trainer computed with a forward pass, or that need none.

| name | proximal policy | forward passes |
|---|---|---|
| recompute | the policy at the start of the step | one, `LossInputs.proximal_logp` |
| snapshot | the version that sampled the token, kept as a copy | one per version, `snapshot_logp` |
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


@needs("behavior")
def behavior(inputs: LossInputs) -> Tensor:
    """[B,T] the engine's log-probabilities."""
    return inputs.need("behavior_logp")
