"""The fused kernel beside the plain way, under Triton's interpreter: python -m tests.train.fused_step MODEL OUT.

A process of its own: Triton decides while it is imported whether kernels are interpreted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from asyncrl.train.models.fused_logprobs import can_fuse, fused_logp
from asyncrl.train.models.token_scores import Head, score_tokens
from asyncrl.train.step.step_batch import build_step_batch
from tests.train.factories import batch_of_groups
from tests.train.one_step import Learner, snapshot

TOKENS, HIDDEN, VOCABULARY = 21, 32, 300
HEADS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def of_head(dtype: torch.dtype) -> dict[str, float]:
    """Return how far log-probabilities and gradients of both ways are from each other, relative to the largest."""
    torch.manual_seed(0)
    module = nn.Linear(HIDDEN, VOCABULARY, bias=False, dtype=dtype)
    head = Head(module, SimpleNamespace())
    states = torch.randn(TOKENS, HIDDEN, dtype=dtype)
    labels, above = torch.randint(0, VOCABULARY, (TOKENS,)), torch.randn(TOKENS)
    assert can_fuse(head, 1.0, (), TOKENS)
    parameters = list(module.parameters())

    def plain(states: Tensor) -> Tensor:
        return score_tokens(labels, VOCABULARY, 1.0, (), None, head.logits, parameters, states)["logp"]

    def fused(states: Tensor) -> Tensor:
        return fused_logp(head, labels, head.logits, parameters, states)["logp"]

    found = []
    for way in (plain, fused):
        own = states.clone().requires_grad_()
        logp = way(own)
        found.append([logp.detach(), *torch.autograd.grad((logp * above).sum(), [own, module.weight])])
    names = ("logp", "states", "weight")
    return {
        name: float((one - other).abs().max() / one.abs().max())
        for name, one, other in zip(names, *found, strict=True)
    }


def steps(model: str, zero_stage: int) -> list[dict[str, float]]:
    """Return what two steps report, plain and fused, and how far their weights are apart."""
    reports, weights = [], []
    for fused in (False, True):
        algo = {"preset": "grpo", "kl": {"coef": 0.1}}
        learner = Learner(model, algo, zero_stage, train={"zero_stage": zero_stage, "fused_logprobs": fused})
        reference: Any = learner.auxiliary.parts["reference"].policy
        policies = [
            learner.engine.engine.module,
            reference.reading.module if zero_stage == 3 else reference.model,
        ]
        assert [policy.fused for policy in policies] == [fused] * 2
        for step in range(2):
            metrics = learner.step(
                build_step_batch(batch_of_groups(), step, step), micro_batch_tokens=60
            ).metrics
        reports.append({name: metrics[name] for name in ("loss/total", "grad_norm", "reference_kl")})
        weights.append(snapshot(learner.engine))
    plain, fused_weights = weights
    apart = max(float((plain[name] - fused_weights[name]).abs().max()) for name in plain)
    return [*reports, {"apart": apart}]


def main(model: str, out: str) -> None:
    found = {"heads": {name: of_head(dtype) for name, dtype in HEADS.items()}}
    found |= {f"zero_{stage}": steps(model, stage) for stage in (0, 3)}  # type: ignore[misc]
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
