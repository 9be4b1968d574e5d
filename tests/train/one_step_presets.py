"""Two steps of several objectives, in process or on two ranks (`tests.ranks`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl.train.step.step_batch import build_step_batch
from tests.train.factories import batch_of_groups
from tests.train.one_step import Learner

CHANGES: dict[str, dict[str, Any]] = {
    "ppo": {"value": {"trunk": "own", "learning_rate": 1e-3, "warmup_steps": 1}},
    "ppo_turn": {"value": {"trunk": "shared"}},
    "archer": {"value": {"trunk": "own", "learning_rate": 1e-3}},
    "dr_mas": {},
    "online_dpo": {},
    "ppo_ewma": {},
    "vcpo": {},
    "spo": {},
    "sat": {},
    "m2po": {},
    "optimal_token_baseline": {},
    "remax": {},
    "gspo": {},
    "sdpo": {},
    # The entropy moves the policy away from its teacher, which starts as the same model.
    "opd_full": {"entropy_coef": 0.05},
    "grpo": {"kl": {"coef": 0.1}},
}
DIVIDED = ("grpo", "opd_full")
"""Trained under ZeRO-3, from models that are divided as they are loaded."""
COMPARED = (
    "reference_kl",
    "loss/total",
    "grad_norm",
    "learning_rate",
    "value/error",
    "ess/sequence",
    "clip_fraction",
)


def run(model: str, preset: str) -> tuple[list[dict[str, float]], int]:
    learner = Learner(model, {"preset": preset, **CHANGES[preset]}, 3 if preset in DIVIDED else 1)
    reports = []
    for step in range(2):
        batch = build_step_batch(batch_of_groups(), step, step)
        metrics = learner.step(batch, micro_batch_tokens=60, num_minibatches=2).metrics
        reports.append({name: metrics[name] for name in COMPARED if name in metrics})
    return reports, learner.engine.rank


def main(model: str, out: str) -> None:
    found = {}
    rank = 0
    for preset in CHANGES:
        found[preset], rank = run(model, preset)
    if rank == 0:
        Path(out).write_text(json.dumps(found))
