"""Collects what runs of `smollm2_svamp` showed, and draws their curve.

    python scripts/bench/real_model_curve.py RUN... --rows rows.jsonl
    python scripts/bench/real_model_curve.py --rows rows.jsonl --plot curve.png

Without runs the rows that are there are drawn. Before and after training the same held-out problems are played.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

WINDOW = 5
"""Steps that a point of the curve is the mean of."""


def row_of(run: Path) -> dict[str, Any]:
    """Return a run's rewards by step and its held-out results."""
    summary = json.loads((run / "summary.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # A step that was repeated after a restart counts as it was taken in the end.
    steps = list({row["step"]: row for row in rows}.values())
    config = json.loads((run / "config.json").read_text())
    return {
        "seed": config["run"]["seed"],
        "max_staleness": config["buffer"]["max_staleness"],
        "staleness_mean": summary["staleness"]["mean"],
        "train_wall_s": round(summary["train_wall_s"], 1),
        "tasks": summary["eval_before"]["tasks"],
        "before": summary["eval_before"]["mean"],
        "before_ci": [summary["eval_before"][key] for key in ("ci_low", "ci_high")],
        "after": summary["eval_after"]["mean"],
        "after_ci": [summary["eval_after"][key] for key in ("ci_low", "ci_high")],
        "rewards": [round(reward, 4) for reward in fresh_rewards(steps)],
    }


def fresh_rewards(steps: list[dict[str, Any]]) -> list[float]:
    """Return the mean reward of all episodes that came in during each step: those of dropped groups, too."""
    totals = [(step["buffer/offered_reward_sum"], step["buffer/offered_reward_mean"]) for step in steps]
    counted = [(0.0, 0.0), *((total, total / mean if mean else 0.0) for total, mean in totals)]
    pairs = itertools.pairwise(counted)
    return [(after[0] - before[0]) / max(1.0, after[1] - before[1]) for before, after in pairs]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the rewards of fresh episodes by step, and held-out success before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for number, row in enumerate(rows):
        rewards, colour = row["rewards"], f"C{number}"
        means = [
            sum(rewards[max(0, i - WINDOW + 1) : i + 1]) / min(i + 1, WINDOW) for i in range(len(rewards))
        ]
        axes.plot(range(1, len(means) + 1), means, color=colour, label=_label(row))
        for step, name in ((0, "before"), (len(means), "after")):
            low, high = row[f"{name}_ci"]
            middle = row[name]
            axes.errorbar(
                step + 0.25 * (number - 1),
                middle,
                [[middle - low], [high - middle]],
                fmt="o",
                color=colour,
                capsize=3,
            )
    axes.set(xlabel="step", ylabel="right answers", ylim=(0, None))
    axes.set_title("SmolLM2-135M on SVAMP: training (lines, mean of 5 steps), held out (points)", fontsize=10)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def _label(row: dict[str, Any]) -> str:
    return f"seed {row['seed']}" + (", synchronous" if row["max_staleness"] == 0 else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if args.runs:
        args.rows.write_text("".join(json.dumps(row_of(run)) + "\n" for run in args.runs))
    if args.plot:
        draw([json.loads(line) for line in args.rows.read_text().splitlines()], args.plot)


if __name__ == "__main__":
    main()
