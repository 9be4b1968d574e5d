"""Checks that a run that mixes environments of unlike length and speed trains each in proportion to its weight.

    python scripts/bench/bench_mix.py [--steps 40] [--seed 0] [--json OUT] [key=value ...]

Trains the recipe mixed_grpo on three parts: calculator, a text game of many turns, and gridworld whose every move waits
for a tool with log-normal latency (median 0.1 s, sigma 1.2). The plan has no end, so slow groups are still in flight
when the run is over, and would be missing if they were overtaken for good. The report has, for each part, its share of
the planned tasks and of the trained groups, at the end and at its worst after a quarter of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from bench_async import MEDIAN_S, SIGMA

from asyncrl.config import load_config
from asyncrl.launch.models.base_model import cached_base_model
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder

RECIPE = "mixed_grpo"
WEIGHTS = {"slow": 2, "calculator": 1, "textgame": 1}
LATENCY = f"latency_median_s = {MEDIAN_S}, latency_sigma = {SIGMA}"
PARTS = (
    f'{{slow = {{env = "scripts.bench.slow_tools:SlowGridworld", weight = 2, config = {{{LATENCY}}}}}, '
    'calculator = {weight = 1}, textgame = {weight = 1, config = {game = "adventure", level = 1}}}'
)


def train(args: argparse.Namespace, folder: Path) -> None:
    """Train once; the run is in `folder` afterwards."""
    own = [f"env.config.parts={PARTS}", f"train.num_steps={args.steps}", f"run.seed={args.seed}"]
    # Made from demonstrations without latency.
    own.append(f"model.path={cached_base_model(load_config(RECIPE))}")
    config = load_config(RECIPE, [*own, "env.num_tasks=0", "eval.tasks=0", *args.overrides])
    with RunFolder(folder) as run_folder:
        TrainRun(config, run_folder).run()


def measure(folder: Path, steps: int) -> dict[str, Any]:
    """Return shares by part, and how unlike the parts were."""
    ledger = sqlite3.connect(folder / "ledger.sqlite")
    trained = ledger.execute("SELECT id, step FROM tasks WHERE state = 'trained' ORDER BY step").fetchall()
    begun = [task for (task,) in ledger.execute("SELECT id FROM tasks WHERE lease IS NOT NULL")]
    ledger.close()
    counts, worst = Counter[str](), dict.fromkeys(WEIGHTS, 0.0)
    for step in range(steps):
        counts.update(part_of(task) for task, at in trained if at == step)
        for part in WEIGHTS if 4 * (step + 1) >= steps else ():
            worst[part] = max(worst[part], abs(counts[part] / counts.total() - weight_share(part)))
    offered = Counter(map(part_of, begun))
    tokens, seconds = lengths(folder)
    return {
        part: {
            "share_of_tasks": weight_share(part),
            "share_of_begun_groups": offered[part] / offered.total(),
            "share_of_trained_groups": counts[part] / counts.total(),
            "worst_difference_after_a_quarter": worst[part],
            "sampled_tokens_mean": statistics.fmean(tokens[part]),
            "episode_s_mean": statistics.fmean(seconds[part]),
        }
        for part in WEIGHTS
    } | {"groups": counts.total()}


def lengths(folder: Path) -> tuple[dict[str, list[int]], dict[str, list[float]]]:
    """Return sampled tokens and seconds of the trained episodes by part."""
    tokens: dict[str, list[int]] = {part: [] for part in WEIGHTS}
    seconds: dict[str, list[float]] = {part: [] for part in WEIGHTS}
    for file in sorted((folder / "trajectories").glob("step-*.parquet")):
        for row in pq.read_table(file).to_pylist():
            part = part_of(row["task"])
            tokens[part].append(sum(row["loss_mask"]))
            seconds[part].append(row["wall_s"])
    return tokens, seconds


def part_of(task: str) -> str:
    """The launcher numbers tasks in front of what the environment calls them."""
    return task.split("-")[1]


def weight_share(part: str) -> float:
    return WEIGHTS[part] / sum(WEIGHTS.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory(prefix="asyncrl-mix-") as name:
        train(args, Path(name) / "run")
        report = {"cores": os.cpu_count(), "seed": args.seed} | measure(Path(name) / "run", args.steps)
    text = json.dumps(report, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
