"""How far the policy that sampled is from the policy that is trained, and which part of it is the engine's.

    log r_b = log pi - log mu = (log pi_v - log mu) + (log pi - log pi_v)
              ratio to correct    engine mismatch      staleness

pi_v is the version that sampled the token, evaluated by the trainer. With snapshots the split is exact.
Without, tokens of the current version are pure mismatch: their mean is the estimate of the engine's part, and what
older tokens have beyond it is the estimate of staleness.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.metrics import Metrics, extreme_over, mean_over
from asyncrl.algo.ops import bounded_ratio, sequence_log_ratio


def divergence(proximal_logp: Tensor, behavior_logp: Tensor, mask: Tensor) -> Metrics:
    """KL(mu || pi_prox) as k1 and k3, chi-squared, perplexities (verl `compute_offpolicy_metrics`)."""
    log_rho = (proximal_logp - behavior_logp).detach()
    live = mask.any(-1)
    length = mask.sum(-1).clamp(min=1)
    behavior_mean = (behavior_logp.detach() * mask).sum(-1) / length
    proximal_mean = (proximal_logp.detach() * mask).sum(-1) / length
    return {
        "mismatch/kl_k1": mean_over(-log_rho, mask),
        "mismatch/kl_k3": mean_over(bounded_ratio(log_rho) - 1 - log_rho, mask),
        "mismatch/abs": mean_over(log_rho.abs(), mask),
        "mismatch/max": extreme_over(log_rho.abs(), mask),
        "mismatch/chi2_token": mean_over(bounded_ratio(log_rho) ** 2 - 1, mask),
        "mismatch/chi2_sequence": mean_over(bounded_ratio(sequence_log_ratio(log_rho, mask)) ** 2 - 1, live),
        "mismatch/perplexity_behavior": mean_over(torch.exp(-behavior_mean), live),
        "mismatch/perplexity_proximal": mean_over(torch.exp(-proximal_mean), live),
        "mismatch/log_perplexity_difference": mean_over(behavior_mean - proximal_mean, live),
    }


def ratio_split(inputs: LossInputs) -> Metrics:
    """`split/engine_kl` and `split/staleness_kl` (k1, exact) with snapshots.

    Else `split/engine_kl_estimate` over tokens of the current version and `split/older_kl`, both parts together, over
    tokens of older ones.
    """
    behavior, policy = inputs.behavior_logp, inputs.logp.detach()
    if behavior is None:
        return {}
    snapshot = inputs.given("snapshot_logp")
    if snapshot is not None:
        engine = snapshot - behavior
        return {
            "split/engine_kl": mean_over(-engine, inputs.mask),
            "split/engine_abs": mean_over(engine.abs(), inputs.mask),
            "split/staleness_kl": mean_over(snapshot - policy, inputs.mask),
        }
    if inputs.versions is None:
        return {}
    current = inputs.mask & (inputs.versions == inputs.current_version)
    older = inputs.mask & (inputs.versions != inputs.current_version)
    return {
        "split/engine_kl_estimate": mean_over(behavior - policy, current),
        "split/older_kl": mean_over(behavior - policy, older),
    }
