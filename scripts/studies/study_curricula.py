"""Compare curricula with uniform sampling on tasks of mixed difficulty: the same seeds, rollouts and settings.

    python scripts/studies/study_curricula.py [--records FILE] [--only NAME,...] [--seeds N] [--table]

The suite is a mix of gridworlds of 3, 6, 12 and 24 cells a side, from often solved to nearly hopeless for the base
model. Each run plays the same number of episodes. An interrupted study
continues with the missing runs. `--table` prints, for each curriculum, held-out success at the end, and the paired
difference to `uniform` over the seeds with its 95 % interval.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from scipy.stats import t as student
from study_runs import Study, read_records

NAMES = ("uniform", "vade", "window", "insight", "gdro", "paced")
COMMON = [
    'env.name="mix"',
    'env.config.parts={a = {env = "gridworld", config = {size = 3, max_turns = 4}}, '
    'b = {env = "gridworld", config = {size = 6, max_turns = 6}}, '
    'c = {env = "gridworld", config = {size = 12, max_turns = 10}}, '
    'd = {env = "gridworld", config = {size = 24, max_turns = 16}}}',
    "curriculum.pool=64",
    "rollout.group_size=8",
    "rollout.max_tokens_per_turn=8",
    "buffer.groups_per_step=4",
    "buffer.max_staleness=1",
    "train.num_steps=24",
    "train.learning_rate=5e-4",
    "train.micro_batch_tokens=4096",
    "engine.max_model_len=256",
    "engine.max_num_seqs=64",
    "eval.tasks=200",
    "sft.hidden_size=64",
    "sft.num_layers=2",
    "sft.episodes=600",
    "sft.steps=80",
]
RECIPE = "gridworld_grpo"


def table(records: list[dict[str, Any]]) -> str:
    """Return the comparison as Markdown."""
    after = {(r["key"]["curriculum"], r["key"]["seed"]): r["after"] for r in records if "after" in r}
    lines = [
        "| curriculum | held-out success at the end | difference to uniform, paired | seeds |",
        "| --- | --- | --- | --- |",
    ]
    for name in NAMES:
        seeds = sorted(seed for made, seed in after if made == name)
        if not seeds:
            continue
        values = [after[name, seed] for seed in seeds]
        paired = [after[name, seed] - after["uniform", seed] for seed in seeds if ("uniform", seed) in after]
        lines.append(
            f"| `{name}` | {statistics.fmean(values):.3f} ({min(values):.3f} to {max(values):.3f}) | "
            f"{interval(paired) if name != 'uniform' else ''} | {len(values)} |"
        )
    return "\n".join(lines)


def interval(differences: list[float]) -> str:
    """Return the mean of paired differences with its 95 % interval by Student's t."""
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return f"{mean:+.3f}"
    half = float(student.ppf(0.975, count - 1)) * statistics.stdev(differences) / math.sqrt(count)
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=Path("docs/figures/curricula.jsonl"))
    parser.add_argument("--only", default=",".join(NAMES), help="curricula, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--table", action="store_true", help="print the table of what there is, and run nothing"
    )
    args = parser.parse_args()
    if not args.table:
        keys = [{"curriculum": n, "seed": s} for s in range(args.seeds) for n in args.only.split(",")]
        Study(args.records).run_missing(
            keys,
            RECIPE,
            COMMON,
            lambda key: [f"curriculum.name={key['curriculum']}", f"run.seed={key['seed']}"],
        )
    print(table(read_records(args.records)))


if __name__ == "__main__":
    main()
