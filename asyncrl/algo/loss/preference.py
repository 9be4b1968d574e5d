"""Preferences: DPO and IPO on pairs of answers, online the best and worst of each prompt, and KTO on single answers.

    z = (log pi(y+) - log pi(y-)) - (log pi_ref(y+) - log pi_ref(y-)),   sums over tokens
    DPO: -log σ(beta z)                 IPO: (z - 1 / (2 beta))²

    KTO: 1 - σ(beta (g - d)) of a desirable answer, 1 - σ(beta (d - g)) of another;  g = log pi(y) - log pi_ref(y)

d, the drift, is how far the policy has moved from the reference: the mean g of answers to other prompts, at least 0.

Sources: DPO arXiv 2305.18290, IPO arXiv 2310.12036, KTO arXiv 2402.01306, Asynchronous RLHF arXiv 2410.18252 (beta 0.1,
off-policy by one step without importance weights). Whole groups must lie in one micro-batch. A prompt whose
scores tie has no pair and no gradient. Aggregate with `prompt_mean_token_sum`: the pair's loss is spread
over the chosen row's tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from asyncrl.algo.groups import dense
from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.metrics import mean_over, ratio_of
from asyncrl.algo.needs import needs


def preference_logits(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """[N] z from summed log-probabilities [N]."""
    return (chosen - rejected) - (ref_chosen - ref_rejected).detach()


def dpo_loss(logits: Tensor, beta: float) -> Tensor:
    """[N] `-log σ(beta z)`."""
    return -F.logsigmoid(beta * logits)


def ipo_loss(logits: Tensor, beta: float) -> Tensor:
    """[N] `(z - 1/(2 beta))²`."""
    return (logits - 1 / (2 * beta)) ** 2


def kto_loss(gains: Tensor, desirable: Tensor, drift: float | Tensor, beta: float) -> Tensor:
    """[N] losses of single answers, between 0 and 1. gains: [N] `log pi(y) - log pi_ref(y)`, sums over tokens.
    desirable: [N] bool."""
    sign = torch.where(desirable, 1.0, -1.0).to(gains.dtype)
    return 1 - torch.sigmoid(beta * sign * (gains - drift))


def kto_drift(gains: Tensor) -> Tensor:
    """Scalar `max(0, mean)` over the gains [N] of answers to other prompts, without a gradient."""
    return gains.detach().mean().clamp(min=0)


def best_and_worst(scores: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Row indices `(chosen [P], rejected [P])` of the groups whose scores differ."""
    g = dense(group)
    pairs = []
    for index in range(int(g.max()) + 1 if g.numel() else 0):
        rows = (g == index).nonzero().squeeze(-1)
        best, worst = rows[scores[rows].argmax()], rows[scores[rows].argmin()]
        if scores[best] > scores[worst]:
            pairs.append((int(best), int(worst)))
    index_pairs = torch.tensor(pairs, dtype=torch.long, device=scores.device).view(-1, 2)
    return index_pairs[:, 0], index_pairs[:, 1]


def _paired(inputs: LossInputs, beta: float, kind: str) -> LossOutputs:
    policy = (inputs.logp * inputs.mask).sum(-1)
    reference = (inputs.need("reference_logp") * inputs.mask).sum(-1)
    chosen, rejected = best_and_worst(inputs.need("scores"), inputs.need("group"))
    z = preference_logits(policy[chosen], policy[rejected], reference[chosen], reference[rejected])
    loss = dpo_loss(z, beta) if kind == "dpo" else ipo_loss(z, beta)
    per_row = torch.zeros_like(policy).index_add(0, chosen, loss)
    token_loss = per_row.unsqueeze(-1) / inputs.mask.sum(-1, keepdim=True).clamp(min=1) * inputs.mask
    metrics = {
        "preference/accuracy": mean_over(z > 0),
        "preference/margin": mean_over(beta * z),
        "preference/pairs_per_row": ratio_of(len(chosen), len(policy)),
    }
    return LossOutputs(token_loss, metrics)


@needs("reference", "scores", "pairs")
def online_dpo(inputs: LossInputs, *, beta: float = 0.1) -> LossOutputs:
    """DPO on the best and worst sample of every prompt."""
    return _paired(inputs, beta, "dpo")


@needs("reference", "scores", "pairs")
def online_ipo(inputs: LossInputs, *, beta: float = 0.1) -> LossOutputs:
    """IPO on the best and worst sample of every prompt."""
    return _paired(inputs, beta, "ipo")
