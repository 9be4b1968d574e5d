"""`summary.json`: what a run did, in one object."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from asyncrl.run.metrics import read_metrics

if TYPE_CHECKING:
    from asyncrl.launch.evaluate import EvalResult
    from asyncrl.launch.roles import PolicyRoles
    from asyncrl.launch.train import TrainRun


def build_summary(run: TrainRun, stats: dict[str, Any]) -> dict[str, Any]:
    """Collect the run's results, over all its lives. Times in seconds; staleness in versions, its histogram in
    tokens."""
    totals, lives = run.folder.read_json("trainer.json"), run.lives.totals()
    run.lives.save()
    train_wall_s = max(lives["train_wall_s"], 1e-9)
    return {
        "eval_before": eval_block(run.eval_before),
        "eval_after": eval_block(run.eval_after),
        "evals": run.evals.results,
        "lives": lives["lives"],
        "wall_s": lives["wall_s"],
        "train_wall_s": lives["train_wall_s"],
        **_training_block(run.roles, stats),
        "busy": {
            "engine": lives["engine_busy_s"] / train_wall_s / len(run.roles.engines),
            "trainer": (totals["busy_s"] + totals["publish_s"]) / train_wall_s,
        },
        "restarts": lives["restarts"],
        "seed": run.config.run.seed,
        "policies": {
            name: _training_block(roles, run.policy_stats[name]) for name, roles in run.roles.policies.items()
        },
    }


def _training_block(roles: PolicyRoles, stats: dict[str, Any]) -> dict[str, Any]:
    """Return what one policy's trainer did."""
    totals = json.loads((roles.folder / "trainer.json").read_text())
    lags = {int(lag): count for lag, count in totals["lags"].items()}
    tokens = max(1, sum(lags.values()))
    pauses = totals["pauses_s"]
    steps = read_metrics(roles.folder)
    return {
        "steps": totals["steps"],
        "max_staleness": roles.config.buffer.max_staleness,
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
