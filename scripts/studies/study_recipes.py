"""What the recipes for two CPU cores teach: held-out success before and after training, with several seeds.

    python scripts/studies/study_recipes.py [RECIPE ...] [--seeds 3] [--at-once 2] [--records FILE] [--table]

Each run is the command a user types, `asyncrl train RECIPE run.seed=N`, in one folder for all, so that the seeds of a
recipe share its base model. A record holds a checksum of what the recipe sets, and records of other settings do not
count: an interrupted study continues with what is missing, and a recipe that has changed is trained again. A failed run
leaves its output and no record. `--table` only writes the table in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from study_runs import measure, read_records, write_page

from asyncrl.config import load_config

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/benchmarks.md"
RECORDS = ROOT / "docs/figures/recipes.jsonl"
MARK = "recipes"


def cpu_recipes() -> list[str]:
    """Return the names of the recipes that start from a model of their own making."""
    found = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.toml"))
    return [
        name for name in found if load_config(ROOT / "recipes" / name / "recipe.toml").model.path == "sft"
    ]


def settings(recipe: str) -> str:
    """Return a checksum of what a recipe sets, with its base; defaults do not change it."""
    folder = ROOT / "recipes"
    texts = [folder / recipe / "recipe.toml", folder / "bases/tiny_cpu.toml"]
    return hashlib.blake2b(b"\0".join(path.read_bytes() for path in texts), digest_size=6).hexdigest()


def missing(records: list[dict[str, Any]], recipes: list[str], seeds: int) -> list[tuple[str, int]]:
    """Return the runs that have no record, all recipes' first seeds first."""
    there = {(record["recipe"], record["seed"]) for record in current(records)}
    return [(name, seed) for seed in range(seeds) for name in recipes if (name, seed) not in there]


def current(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of recipes as they are now; of those with one seed, the last."""
    found = {
        (one["recipe"], one["seed"]): one for one in records if one["settings"] == settings(one["recipe"])
    }
    return list(found.values())


def train(recipe: str, seed: int, folder: Path) -> dict[str, Any] | None:
    """Run the command; return its record, None where it failed."""
    start, load = time.monotonic(), os.getloadavg()[0]
    name = free_name(f"{recipe}-{seed}", folder / "runs")
    argv = [sys.executable, "-m", "asyncrl", "train", recipe, f"run.seed={seed}", f"run.name={name}"]
    with open(folder / f"{name}.log", "w") as output:
        code = subprocess.run(
            argv, cwd=folder, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    if code:
        print(f"{name} failed with exit code {code}; see {folder / name}.log", flush=True)
        return None
    return record(recipe, seed, folder / "runs" / name) | {
        "wall_s": round(time.monotonic() - start),
        "load_before": round(load, 1),
    }


def free_name(name: str, runs: Path) -> str:
    """Return the name of a new run: what was interrupted, failed or had other settings keeps its folder."""
    tries = (f"{name}-{number}" if number else name for number in itertools.count())
    return next(one for one in tries if not (runs / one).exists())


def record(recipe: str, seed: int, run: Path) -> dict[str, Any]:
    """Return what is kept of a finished run."""
    summary = json.loads((run / "summary.json").read_text())
    before, after = summary["eval_before"], summary["eval_after"]
    key = {"recipe": recipe, "seed": seed, "settings": settings(recipe), "date": time.strftime("%Y-%m-%d")}
    success = {"before": before["success"], "after": after["success"], "after_ci": after["success_ci"]}
    return key | measure(run, summary) | success


def table(records: list[dict[str, Any]], seeds: int) -> str:
    """Return the table of the page: one row a recipe, one column a seed."""
    rows = [
        "| recipe | steps | tasks | "
        + " | ".join(f"seed {seed}" for seed in range(seeds))
        + " | mean gain |",
        "| --- " * (seeds + 4) + "|",
    ]
    for recipe in sorted({one["recipe"] for one in records}):
        own = {one["seed"]: one for one in records if one["recipe"] == recipe}
        first = next(iter(own.values()))
        cells = [
            f"{own[seed]['before']:.3f} to {own[seed]['after']:.3f}" if seed in own else ""
            for seed in range(seeds)
        ]
        gain = sum(one["after"] - one["before"] for one in own.values()) / len(own)
        link = f"[{recipe}](../recipes/{recipe}/README.md)"
        rows.append(f"| {link} | {first['steps']} | {first['tasks']} | {' | '.join(cells)} | {gain:+.2f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help="all for CPUs if none is named")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=2, help="runs beside each other")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--folder", type=Path, default=Path("recipe-runs"), help="of the runs")
    parser.add_argument("--table", action="store_true", help="only write the table")
    args = parser.parse_args()
    known = cpu_recipes()
    if unknown := sorted(set(args.recipes) - set(known)):
        parser.error(f"{', '.join(unknown)}: not among the recipes for CPUs, which are {', '.join(known)}")
    if not args.table:
        args.folder.mkdir(parents=True, exist_ok=True)
        writing = threading.Lock()

        def run(one: tuple[str, int]) -> None:
            found = train(*one, args.folder.resolve())
            if found is None:
                return
            with writing, open(args.records, "a") as file:
                file.write(json.dumps(found) + "\n")
            print(
                f"{one[0]} seed {one[1]}: {found['before']} to {found['after']}, {found['wall_s']} s",
                flush=True,
            )

        with ThreadPoolExecutor(args.at_once) as pool:
            list(pool.map(run, missing(read_records(args.records), args.recipes or known, args.seeds)))
    print(write_page(PAGE, MARK, table(current(read_records(args.records)), args.seeds)))


if __name__ == "__main__":
    main()
