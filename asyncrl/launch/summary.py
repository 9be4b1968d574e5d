"""`summary.json`: what a run did, in one object."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.launch.evaluation.evaluate import EvalResult
from asyncrl.run.metrics import read_metrics


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What the training of one policy has left behind."""

    folder: Path
    """With the trainer's totals and the steps' metrics."""
    max_staleness: int
    stats: dict[str, Any]
    """Last counts of its buffer."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run that has ended has left behind."""

    main: PolicyResult
    totals: dict[str, Any]
    """Over all launches of the run, see `run.totals.RunTotals.totals`."""
    num_engines: float
    """The number of engines of the main policy while it trained, on average."""
    seed: int
    eval_before: EvalResult | None = None
    eval_after: EvalResult | None = None
    evals: list[dict[str, Any]] = field(default_factory=list)
    """Records of the evaluations during training."""
    policies: dict[str, PolicyResult] = field(default_factory=dict)
    """Further policies by name."""


def build_summary(result: RunResult) -> dict[str, Any]:
    """Return the summary. Times in seconds; staleness in versions, its histogram in tokens."""
    totals = result.totals
    trainer = _trainer_totals(result.main)
    train_wall_s = max(totals["train_wall_s"], 1e-9)
    return {
        "eval_before": eval_block(result.eval_before),
        "eval_after": eval_block(result.eval_after),
        "evals": result.evals,
        "lives": totals["lives"],
        "wall_s": totals["wall_s"],
        "train_wall_s": totals["train_wall_s"],
        **_training_block(result.main),
        "busy": {
            "engine": totals["engine_busy_s"] / train_wall_s / result.num_engines,
            "trainer": (trainer["busy_s"] + trainer["publish_s"]) / train_wall_s,
        },
        "restarts": totals["restarts"],
        "seed": result.seed,
        "policies": {name: _training_block(policy) for name, policy in result.policies.items()},
    }


def _trainer_totals(policy: PolicyResult) -> dict[str, Any]:
    return json.loads((policy.folder / "trainer.json").read_text())


def _training_block(policy: PolicyResult) -> dict[str, Any]:
    """Return what the trainer of one policy did."""
    totals, stats = _trainer_totals(policy), policy.stats
    lags = {int(lag): count for lag, count in totals["lags"].items()}
    tokens = max(1, sum(lags.values()))
    pauses = totals["pauses_s"]
    steps = read_metrics(policy.folder)
    return {
        "steps": totals["steps"],
        "max_staleness": policy.max_staleness,
        "staleness": {
            "max": max(lags, default=0),
            "mean": sum(lag * count for lag, count in lags.items()) / tokens,
            "histogram": {str(lag): lags[lag] for lag in sorted(lags)},
        },
        "groups": {
            "admitted": stats["admitted"],
            "trained": stats["trained"],
            "dropped": stats["dropped_by_reason"],
            "failed": stats["failed_by_class"],
        },
        "tokens": {"generated": stats.get("tokens_generated", 0), "trained": totals["trained_tokens"]},
        "sync_pause_s": {"mean": sum(pauses) / max(1, len(pauses)), "max": max(pauses, default=0.0)},
        "final_reward": steps[-1]["reward/mean"] if steps else None,
        "checkpoint": f"checkpoints/step-{totals['version']:06d}",
    }


def eval_block(result: EvalResult | None) -> dict[str, Any] | None:
    """Return an evaluation as `summary.json` holds it: success where the environment judges it, else reward."""
    if result is None:
        return None
    mean, low, high = result.mean, result.ci_low, result.ci_high
    if result.success is not None:
        mean, (low, high) = result.success, result.success_ci or (None, None)
    return {
        "mean": mean,
        "ci_low": low,
        "ci_high": high,
        **{k: v for k, v in result.to_json().items() if k not in ("mean", "ci_low", "ci_high")},
        "reward": result.mean,
    }
