"""CISPO: clip the importance weight, not the update: `l = -sg[w] A log pi`, r = pi / pi_old.

Source: MiniMax-M1, arXiv 2506.13585. Three incompatible conventions share the name:

| name | w | used by |
|---|---|---|
| cispo | clip(r, 1 - eps_low, 1 + eps_high) | verl, AReaL, slime, NeMo-RL, SkyRL (1.0 / 4.0) |
| cispo_absolute | min(r, cap) | TRL, where the cap is called `epsilon_high` (5.0) |
| cispo_upper | min(r, 1 + eps_high) | open-instruct, PipelineRL |
"""

from __future__ import annotations

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio
from asyncrl.extensions.published.loss.importance import weighted_reinforce


@needs("proximal")
@weighed_by_advantage
def cispo(inputs: LossInputs, *, eps_low: float = 1.0, eps_high: float = 4.0) -> LossOutputs:
    """Weight `clip(r, 1 - eps_low, 1 + eps_high)`."""
    ratio = bounded_ratio(inputs.log_ratio)
    low, high = 1 - eps_low, 1 + eps_high
    return weighted_reinforce(inputs, ratio.clamp(low, high), (ratio < low) | (ratio > high))


@needs("proximal")
@weighed_by_advantage
def cispo_absolute(inputs: LossInputs, *, cap: float = 5.0) -> LossOutputs:
    """Weight `min(r, cap)`."""
    ratio = bounded_ratio(inputs.log_ratio)
    return weighted_reinforce(inputs, ratio.clamp(max=cap), ratio > cap)


@needs("proximal")
@weighed_by_advantage
def cispo_upper(inputs: LossInputs, *, eps_high: float = 0.272) -> LossOutputs:
    """Weight `min(r, 1 + eps_high)`."""
    return cispo_absolute(inputs, cap=1 + eps_high)
