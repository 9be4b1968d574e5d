"""The effect of staleness on five methods: a table and plot of docs/benchmarks.md.

    python scripts/studies/study_asynchrony.py [--records FILE] [--seeds 1] [--table]

Gridworld with its tiny base model; staleness limits 0, 1, 4 and 16; the same settings for all. A study that was
interrupted continues with the missing runs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from study_runs import LAST_STEPS, Study, read_records, write_page

RECIPE = "gridworld_grpo"
LIMITS = (0, 1, 4, 16)
METHODS = {
    "PPO clip": ["algo.preset=grpo", "algo.corrections=[]", "algo.proximal.name=behavior"],
    "TIS": ["algo.preset=tis"],
    "decoupled PPO": ["algo.preset=decoupled_ppo"],
    "PPO-EWMA": ["algo.preset=ppo_ewma"],
    "VCPO": ["algo.preset=vcpo"],
}
COMMON = [
    "rollout.group_size=16",
    "buffer.groups_per_step=4",
    "engine.max_num_seqs=256",
    "train.num_steps=24",
    "train.num_minibatches=2",
    "train.learning_rate=4e-4",
    "train.lr_schedule=constant",
    "train.warmup_steps=0",
    "train.micro_batch_tokens=8192",
    "eval.tasks=200",
]
PAGE = Path("docs/benchmarks.md")


def plan(seeds: int) -> list[dict[str, Any]]:
    return [
        {"method": method, "staleness": limit, "seed": seed}
        for seed in range(seeds)
        for limit in LIMITS
        for method in METHODS
    ]


def table(records: list[dict[str, Any]]) -> str:
    """Return the study's table as Markdown: medians over seeds."""
    lines = [
        "| method | limit | mean staleness | success after | reward, last steps | sequence ESS | token ESS "
        "| clip fraction | training s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        for limit in LIMITS:
            runs = [r for r in records if r["key"]["method"] == method and r["key"]["staleness"] == limit]
            runs = [r for r in runs if "after" in r]
            if not runs:
                continue
            cells = [
                f"{median(runs, 'staleness_mean'):.1f}",
                f"{median(runs, 'after'):.3f}",
                f"{statistics.median(statistics.fmean(r['reward_curve'][-LAST_STEPS:]) for r in runs):.3f}",
                *(f"{median(runs, name):.3f}" for name in ("ess_sequence", "ess_token", "clip_fraction")),
                f"{median(runs, 'train_wall_s'):.0f}",
            ]
            lines.append(f"| {method} | {limit} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def median(runs: list[dict[str, Any]], name: str) -> float:
    values = [r[name] for r in runs if r.get(name) is not None]
    return statistics.median(values) if values else float("nan")


def plot(records: list[dict[str, Any]], path: Path) -> None:
    """Draw the training reward of seed 0, one panel per method, one line per limit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(METHODS), figsize=(3 * len(METHODS), 3), sharey=True)
    for axis, method in zip(axes, METHODS, strict=True):
        for limit in LIMITS:
            key = {"method": method, "staleness": limit, "seed": 0}
            for record in records:
                if record["key"] == key and "reward_curve" in record:
                    axis.plot(record["reward_curve"], label=str(limit), linewidth=1)
        axis.set_title(method)
        axis.set_xlabel("step")
    axes[0].set_ylabel("mean training reward")
    axes[0].legend(title="staleness limit", fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def overrides(key: dict[str, Any]) -> list[str]:
    """Return what sets a run apart."""
    own = [f"buffer.max_staleness={key['staleness']}", f"run.seed={key['seed']}"]
    return [*METHODS[key["method"]], *own]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=Path("docs/figures/asynchrony.jsonl"))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="only write page and plot from the records")
    args = parser.parse_args()
    if not args.table:
        Study(args.records).run_missing(plan(args.seeds), RECIPE, COMMON, overrides)
    records = read_records(args.records)
    plot(records, args.records.with_suffix(".png"))
    print(write_page(PAGE, "study", table(records)))


if __name__ == "__main__":
    main()
