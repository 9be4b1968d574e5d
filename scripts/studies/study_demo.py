"""The reliability of the demo: its training with many seeds, half of them beside a busy process.

    python scripts/studies/study_demo.py --runs 20 --records demo.jsonl [key=value ...]

Each run is the command a user types, `asyncrl train gridworld_grpo`, on a base model that all share. An interrupted
study continues with the seeds that have not finished; a failed run leaves a record with the error and is repeated.
`--limit N` ends the study after N further runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from study_runs import measure, read_records

from asyncrl.process_hooks import die_with_parent
from asyncrl.run.metrics import read_metrics

BUSY = "while True: pass"


def start_busy() -> subprocess.Popen[bytes]:
    """Start a process that keeps one core busy for as long as this one lives."""
    return subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=die_with_parent)


def run_once(recipe: str, seed: int, busy: bool, overrides: list[str]) -> dict[str, Any]:
    """Train with one seed and return its record; a run that fails leaves the end of its output."""
    start = time.monotonic()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="asyncrl-study-") as folder:
        argv = [
            *(sys.executable, "-m", "asyncrl", "train", recipe, *overrides),
            *(f"run.seed={seed}", f"run.folder={json.dumps(folder)}", "run.name=run"),
        ]
        beside = start_busy() if busy else None
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
        finally:
            if beside is not None:
                beside.kill()
                beside.wait()
        record: dict[str, Any] = {"seed": seed, "busy": busy, "load_before": round(load_before, 1)}
        if done.returncode:
            record["error"] = done.stderr[-1000:]
        else:
            record |= measured(Path(folder) / "run")
    record["wall_s"] = round(time.monotonic() - start, 1)
    return record


def measured(run: Path) -> dict[str, Any]:
    """Return what a record keeps of a finished run: what all studies keep, and the size of each step."""
    steps = read_metrics(run)
    return measure(run, json.loads((run / "summary.json").read_text())) | {
        "learning_rates": [step.get("learning_rate") for step in steps],
        "grad_norms": [round(step.get("grad_norm", 0.0), 3) for step in steps],
    }


def report(records: list[dict[str, Any]], least: float) -> dict[str, Any]:
    """Return the numbers of a study: every run's held-out success by seed, and how many reached `least`."""
    ended = {record["seed"]: record["after"] for record in records if "after" in record}
    return {
        "after": {str(seed): ended[seed] for seed in sorted(ended)},
        "busy": sorted({record["seed"] for record in records if record["busy"] and "after" in record}),
        "lowest": min(ended.values(), default=None),
        "reached": sum(value >= least for value in ended.values()),
        "runs": len(ended),
        "failed": sorted({record["seed"] for record in records} - set(ended)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--recipe", default="gridworld_grpo")
    parser.add_argument(
        "--runs", type=int, default=20, help="seeds 0 to N - 1; odd ones beside a busy process"
    )
    parser.add_argument("--limit", type=int, default=0, help="end after so many further runs; 0 for all")
    parser.add_argument("--records", type=Path, required=True, help="JSON lines, one run each")
    parser.add_argument(
        "--least", type=float, default=0.95, help="held-out success that each run is to reach"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    done = {record["seed"] for record in read_records(args.records) if "after" in record}
    missing = [seed for seed in range(args.runs) if seed not in done]
    for seed in missing[: args.limit or None]:
        record = run_once(args.recipe, seed, bool(seed % 2), args.overrides)
        with open(args.records, "a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps({key: record.get(key) for key in ("seed", "busy", "after", "error", "wall_s")}))
    print(json.dumps(report(read_records(args.records), args.least), indent=1))


if __name__ == "__main__":
    main()
