"""TOPR: imitate successes, and weigh failures by a ratio truncated to [0, 1].

    score > 0:  l = -A log pi          otherwise:  l = -sg[clip(r_b, 0, 1)] A log pi

Source: "Tapered Off-Policy REINFORCE", arXiv 2503.14286, where r_b is the ratio of the *trajectory*
(`topr_trajectory`); ROLL truncates the ratio of each token (`topr_token`). A score of 0 counts as a failure.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.needs import needs, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio, sequence_log_ratio, to_tokens
from asyncrl.extensions.published.loss.importance import weighted_reinforce


def _tapered(inputs: LossInputs, ratio: Tensor) -> LossOutputs:
    success = (inputs.need("scores") > 0).unsqueeze(-1)
    weight = torch.where(success, 1.0, ratio.clamp(0, 1))
    return weighted_reinforce(inputs, weight, ~success & (ratio > 1))


@needs("behavior", "scores")
@weighed_by_advantage
def topr_token(inputs: LossInputs) -> LossOutputs:
    """Token ratios (ROLL)."""
    return _tapered(inputs, bounded_ratio(inputs.behavior_log_ratio.detach()))


@needs("behavior", "scores")
@weighed_by_advantage
def topr_trajectory(inputs: LossInputs) -> LossOutputs:
    """Product ratio of the whole trajectory (paper)."""
    log_ratio = sequence_log_ratio(inputs.behavior_log_ratio.detach(), inputs.mask)
    ratio = to_tokens(bounded_ratio(log_ratio), inputs.mask)
    outputs = _tapered(inputs, ratio)
    per_sequence = torch.where(inputs.need("scores") > 0, 1.0, bounded_ratio(log_ratio).clamp(max=1))
    tensors = outputs.tensors | {"sequence_weight": per_sequence}
    return LossOutputs(outputs.token_loss, outputs.metrics, tensors)
