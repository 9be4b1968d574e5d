"""What `engine.keep_kv` makes of training and of the log-probability check: a table of docs/benchmarks.md.

    python scripts/studies/study_kept_kv.py [--records FILE] [--seeds 2] [--table]

Gridworld with its tiny base model, the same seeds with and without. A study that was interrupted continues with the
missing runs.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from study_runs import LAST_STEPS, Study, read_records, write_page

RECIPE = "gridworld_grpo"
COMMON = [
    "engine.max_num_seqs=256",
    "eval.tasks=100",
    "rollout.group_size=8",
    "sft.episodes=200",
    "sft.steps=60",
]
"""A weak base model that is made in a minute."""
PAGE = Path("docs/benchmarks.md")


def plan(seeds: int) -> list[dict[str, Any]]:
    return [{"keep_kv": kept, "seed": seed} for seed in range(seeds) for kept in (False, True)]


def table(records: list[dict[str, Any]]) -> str:
    """Return the study's table as Markdown, one line a run."""
    lines = [
        "| keep_kv | seed | success before → after | reward, last steps | largest group error | largest token error |",
        "|---|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda r: (r["key"]["keep_kv"], r["key"]["seed"])):
        if "after" in record:
            last = statistics.fmean(record["reward_curve"][-LAST_STEPS:])
            errors = [f"{record[name]:.1e}" for name in ("logprob_error", "logprob_worst_token")]
            cells = [
                str(record["key"]["keep_kv"]).lower(),
                str(record["key"]["seed"]),
                f"{record['before']:.3f} → {record['after']:.3f}",
                f"{last:.3f}",
                *errors,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def overrides(key: dict[str, Any]) -> list[str]:
    """Return what sets a run apart."""
    return [f"engine.keep_kv={str(key['keep_kv']).lower()}", f"run.seed={key['seed']}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=Path("docs/figures/kept_kv.jsonl"))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="only write the page from the records")
    args = parser.parse_args()
    if not args.table:
        Study(args.records).run_missing(plan(args.seeds), RECIPE, COMMON, overrides)
    print(write_page(PAGE, "kept kv", table(read_records(args.records))))


if __name__ == "__main__":
    main()
