"""Online preferences: DPO and IPO on the best and worst sample of each prompt.

    z = (log pi(y+) - log pi(y-)) - (log pi_ref(y+) - log pi_ref(y-)),   sums over tokens

Sources: DPO arXiv 2305.18290, IPO arXiv 2310.12036, Asynchronous RLHF arXiv 2410.18252 (beta 0.1, off-policy by one
step without importance weights). Whole groups must lie in one micro-batch. A prompt whose scores tie has no pair and no
gradient. Aggregate with `prompt_mean_token_sum`: the pair's loss is spread over the chosen row's tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.groups import dense
from asyncrl.algo.inputs import LossInputs, LossOutputs
from asyncrl.algo.loss.preference import dpo_loss, ipo_loss, preference_logits
from asyncrl.algo.metrics import mean_over, ratio_of
from asyncrl.algo.needs import needs


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
