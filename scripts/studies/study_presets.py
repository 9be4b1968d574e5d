"""Train the tiny base models with every preset, and write the table of docs/benchmarks.md.

    python scripts/studies/study_presets.py [--records FILE] [--only NAME,...] [--part NAME,...] [--table]

Parts: `main` (five presets, three seeds, staleness limits 0, 1 and 4), `gridworld` and `calculator` (every preset
once, limit 1). An interrupted study continues with the missing runs. Settings are the same for all presets except for
what a preset requires; nothing is tuned for a preset.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from study_runs import Study, read_records, write_page

from asyncrl.algo.presets import PRESETS
from asyncrl.launch.attached_run import SharedEngine

MAIN = ("grpo", "dapo", "gspo", "cispo", "decoupled_ppo")
COMMON = [
    "rollout.group_size=8",
    "buffer.groups_per_step=8",
    "eval.tasks=200",
    "engine.max_num_seqs=128",
    "train.micro_batch_tokens=4096",
    "train.lr_schedule=constant",
    "train.warmup_steps=0",
]
RECIPES = {
    "gridworld": ("gridworld_grpo", [*COMMON, "train.num_steps=14", "train.learning_rate=5e-4"]),
    "calculator": ("calculator_grpo", [*COMMON, "train.num_steps=12", "train.learning_rate=3e-4"]),
}
HORIZON = {"gridworld": 64, "calculator": 80}
PAGE = Path("docs/benchmarks.md")
MARK = "presets"
CRITIC = ["algo.value.learning_rate=1e-3", "algo.value.warmup_steps=2"]


def settings(preset: str, task: str, teacher: str) -> list[str]:
    """Return what `preset` needs beyond its name."""
    found = [f"algo.preset={preset}"]
    if preset == "dr_grpo":
        found.append(f"algo.aggregation.horizon={HORIZON[task]}")
    if preset in ("ppo", "pf_ppo", "ppo_turn", "vapo", "sao", "archer", "archer_double_q", "impala"):
        found += CRITIC
    if preset == "gdpo" and task == "gridworld":
        found.append("algo.advantage.weights={goal=1.0, invalid=-0.2}")
    if preset == "igpo" and task == "gridworld":
        found.append("algo.advantage.source=environment")
    if preset in ("opd", "opd_full"):
        found.append(f"teacher.path={teacher}")
    if preset == "sdpo":
        found.append("teacher.path=self")
    return found


def plan(parts: list[str], only: list[str]) -> list[dict[str, Any]]:
    """Return the keys of the study's runs, in order."""
    keys: list[dict[str, Any]] = []
    chosen = [name for name in PRESETS if not only or name in only]
    for part in parts:
        if part == "main":
            keys += [
                {"task": "gridworld", "preset": preset, "staleness": limit, "seed": seed}
                for seed in range(3)
                for limit in (1, 0, 4)
                for preset in chosen
                if preset in MAIN
            ]
        else:
            keys += [
                {"task": part, "preset": preset, "staleness": 1, "seed": 0}
                for preset in chosen
                # A walk through the grid has no answer whose likelihood could be asked for.
                if (part, preset) != ("gridworld", "a2tgpo")
            ]
    return [key for i, key in enumerate(keys) if key not in keys[:i]]


def make_teacher(shared: SharedEngine, task: str, folder: Path) -> str:
    """Train a teacher for distillation with the recipe's own preset; return its checkpoint's folder."""
    found = sorted(folder.glob("step-*"))
    if not found:
        recipe, overrides = RECIPES[task]
        study = Study(folder / "records.jsonl", keep=folder)
        folder.mkdir(parents=True, exist_ok=True)
        study.run(shared, {"teacher": task}, recipe, [*overrides, "train.num_steps=24"])
        found = sorted(folder.glob("step-*"))
    return str(found[-1])


def page(records: list[dict[str, Any]]) -> str:
    """Return the tables as Markdown."""
    return main_table(records) + "\n" + all_table(records)


def main_table(records: list[dict[str, Any]]) -> str:
    """Final held-out success of the main presets: median and range over seeds, by staleness limit."""
    lines = [
        "| preset | limit 0 | limit 1 | limit 4 | seconds of training at limit 0, 1, 4 (median) |",
        "|---|---|---|---|---|",
    ]
    for preset in MAIN:
        cells, walls = [], []
        for limit in (0, 1, 4):
            runs = [
                r
                for r in records
                if r["key"] == r["key"] | {"task": "gridworld", "preset": preset, "staleness": limit}
            ]
            after = sorted(r["after"] for r in runs if "after" in r)
            if after:
                middle = statistics.median(after)
                cells.append(f"{middle:.3f} ({after[0]:.3f} to {after[-1]:.3f}, {len(after)} seeds)")
                walls.append(f"{statistics.median(r['train_wall_s'] for r in runs if 'after' in r):.0f}")
            else:
                cells.append("–")
        lines.append(f"| `{preset}` | " + " | ".join(cells) + f" | {', '.join(walls) or '–'} |")
    return "\n".join(lines) + "\n"


def all_table(records: list[dict[str, Any]]) -> str:
    """Success before and after for every preset, one run each."""
    lines = ["| preset | gridworld | calculator | note |", "|---|---|---|---|"]
    for preset in PRESETS:
        cells, notes = [], []
        for task in RECIPES:
            key = {"task": task, "preset": preset, "staleness": 1, "seed": 0}
            found = next((r for r in records if r["key"] == key), None)
            if found is None:
                cells.append("–")
            elif "error" in found:
                cells.append("failed")
                notes.append(f"{task}: {found['error'].splitlines()[0][:120]}")
            else:
                cells.append(f"{found['before']:.3f} → {found['after']:.3f}")
        lines.append(f"| `{preset}` | " + " | ".join(cells) + f" | {'; '.join(notes)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=Path, default=Path("docs/figures/presets.jsonl"))
    parser.add_argument("--only", default="", help="presets, separated by commas")
    parser.add_argument("--part", default="gridworld,main,calculator")
    parser.add_argument("--table", action="store_true", help="only write the page from the records")
    parser.add_argument("--teachers", type=Path, default=Path(".cache/teachers"))
    args = parser.parse_args()
    if args.table:
        print(write_page(PAGE, MARK, page(read_records(args.records))))
        return
    args.records.parent.mkdir(parents=True, exist_ok=True)
    study = Study(args.records)
    keys = plan(args.part.split(","), [name for name in args.only.split(",") if name])
    while missing := [key for key in keys if not study.has(key)]:
        task = missing[0]["task"]
        recipe, overrides = RECIPES[task]
        with study.engine(recipe, overrides) as shared:
            for key in missing:
                if key["task"] != task:
                    break
                teacher = ""
                if key["preset"] in ("opd", "opd_full"):
                    teacher = make_teacher(shared, task, args.teachers / task)
                own = settings(key["preset"], task, teacher)
                limit = [f"buffer.max_staleness={key['staleness']}", f"run.seed={key['seed']}"]
                study.run(shared, key, recipe, [*overrides, *own, *limit])


if __name__ == "__main__":
    main()
