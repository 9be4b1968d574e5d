"""Clip-Cov and KL-Cov: keep the entropy up by holding back the tokens that lower it most.

    cov_t = (A_t - mean A) (log pi_old,t - mean log pi_old),  means over the step's sampled tokens
    clip_cov:  PPO clip; of the tokens with cov_low < cov < cov_high, share N of the step's N tokens get loss 0
    kl_cov:    -A r, plus coef |log r| on the share N of the step's tokens with the largest covariance

Source: "The Entropy Mechanism of RL for Reasoning LMs", arXiv 2505.22617; verl and SkyRL (share 2e-4, band 1 to 5 and
coef 1). At least one token is chosen where there is a candidate. The covariance is that of the proximal policy,
so that a token is chosen once for all optimizer steps of a batch; theirs follows the current policy. They draw the
tokens of Clip-Cov at random; ours follow from the digits of log-probabilities, so the cut into micro-batches changes
nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.ppo import ppo_clip, ratio_metrics
from asyncrl.algo.metrics import mean_over
from asyncrl.algo.needs import needs, step_statistics, weighed_by_advantage
from asyncrl.algo.ops import bounded_ratio, masked_mean

MIX = -49064778989728563  # The odd multiplier of MurmurHash3's finaliser, as a signed number.


def token_covariance(inputs: LossInputs, mean_advantage: Tensor, mean_logp: Tensor) -> Tensor:
    """[B,T] covariance of advantage and log-probability, token by token."""
    return (inputs.need("advantages") - mean_advantage) * (inputs.need("proximal_logp") - mean_logp)


def draw(logp: Tensor) -> Tensor:
    """A number in [0, 1) for each token that depends on nothing but its log-probability."""
    bits = logp.detach().double().contiguous().view(torch.int64)
    mixed = (bits ^ (bits >> 33)) * MIX
    mixed = (mixed ^ (mixed >> 33)) * MIX
    return ((mixed >> 11) & (2**52 - 1)).double() / 2**52


def _means(inputs: LossInputs) -> dict[str, Tensor]:
    return {
        "cov_advantage": masked_mean(inputs.need("advantages"), inputs.mask),
        "cov_logp": masked_mean(inputs.need("proximal_logp"), inputs.mask),
    }


def _how_many(share: float, inputs: LossInputs) -> int:
    return max(int(share * int(inputs.mask.sum())), 1)


def clip_cov_of_step(inputs: LossInputs, share: float, cov_low: float, cov_high: float) -> dict[str, Tensor]:
    """The means of the whole step, and the largest draw among the candidates that are chosen; -1 without any."""
    means = _means(inputs)
    candidates = draw(inputs.need("proximal_logp"))[_in_band(inputs, means, cov_low, cov_high)]
    chosen = candidates.sort().values[: _how_many(share, inputs)]
    return means | {"clip_cov_draw": chosen[-1] if chosen.numel() else chosen.new_tensor(-1.0)}


def _in_band(inputs: LossInputs, means: dict[str, Tensor], cov_low: float, cov_high: float) -> Tensor:
    covariance = token_covariance(inputs, means["cov_advantage"], means["cov_logp"])
    return inputs.mask & (covariance > cov_low) & (covariance < cov_high)


@needs("proximal")
@step_statistics(clip_cov_of_step)
@weighed_by_advantage
def clip_cov(
    inputs: LossInputs,
    *,
    share: float = 2e-4,
    cov_low: float = 1.0,
    cov_high: float = 5.0,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
) -> LossOutputs:
    """PPO clip without the tokens that are drawn from the band."""
    found = inputs.statistics
    if "clip_cov_draw" not in found:
        found = clip_cov_of_step(inputs, share, cov_low, cov_high)
    drawn = draw(inputs.need("proximal_logp")) <= found["clip_cov_draw"]
    dropped = _in_band(inputs, found, cov_low, cov_high) & drawn
    outputs = ppo_clip(inputs, eps_low=eps_low, eps_high=eps_high)
    metrics = outputs.metrics | {"covariance/chosen_fraction": mean_over(dropped, inputs.mask)}
    tensors = outputs.tensors | {"chosen": dropped}
    return LossOutputs(torch.where(dropped, 0.0, outputs.token_loss), metrics, tensors)


def kl_cov_of_step(inputs: LossInputs, share: float) -> dict[str, Tensor]:
    """The means of the whole step, and the smallest covariance that is among the largest; infinity without tokens."""
    means = _means(inputs)
    covariance = token_covariance(inputs, means["cov_advantage"], means["cov_logp"])[inputs.mask]
    largest = covariance.topk(min(_how_many(share, inputs), covariance.numel())).values
    return means | {"kl_cov_least": largest[-1] if largest.numel() else largest.new_tensor(torch.inf)}


@needs("proximal")
@step_statistics(kl_cov_of_step)
def kl_cov(inputs: LossInputs, *, share: float = 2e-4, coef: float = 1.0) -> LossOutputs:
    """The unclipped surrogate, with a KL penalty on the tokens of largest covariance."""
    found = inputs.statistics if "kl_cov_least" in inputs.statistics else kl_cov_of_step(inputs, share)
    covariance = token_covariance(inputs, found["cov_advantage"], found["cov_logp"])
    chosen = inputs.mask & (covariance >= found["kl_cov_least"])
    ratio = bounded_ratio(inputs.log_ratio)
    loss = -inputs.need("advantages") * ratio + torch.where(chosen, coef * inputs.log_ratio.abs(), 0.0)
    metrics = ratio_metrics(inputs, ratio) | {"covariance/chosen_fraction": mean_over(chosen, inputs.mask)}
    return LossOutputs(loss * inputs.mask, metrics, {"chosen": chosen})
