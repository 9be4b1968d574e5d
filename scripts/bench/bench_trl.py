"""asyncrl beside TRL's GRPOTrainer: seconds of training until a step's mean reward reaches 0.95, in one run.

    python scripts/bench/bench_trl.py --peer PEER/bin/python [--seeds 3] [--slow-tools] [--json OUT]

Both train the same tiny base model on gridworld: 16 tasks with 16 rollouts a step, learning rate 3e-4, one after the
other for each seed. asyncrl runs with all its services, over HTTP; TRL in one process, with transformers' generation
(`scripts/peers/trl_gridworld.py`, which says how to make its environment). Starting up is timed for neither. With
--slow-tools every move waits for a tool with log-normal latency (median 0.1 s, sigma 1.2).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench_async import MEDIAN_S, SIGMA, base_model, say, spread

from asyncrl.config import load_config
from asyncrl.config_checks import check_objective
from asyncrl.extensions.study.attached_run import AttachedRun, SharedEngine
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics

RECIPE = "gridworld_grpo"
TASKS, GROUP_SIZE, LEARNING_RATE, THRESHOLD, MAX_STEPS = 16, 16, 3e-4, 0.95, 24
PEER_TIMEOUT_S = 900.0


def overrides(seed: int, slow: bool) -> list[str]:
    latency = f"{{latency_median_s={MEDIAN_S}, latency_sigma={SIGMA}, latency_seed={seed}}}"
    tools = [
        "env.name=scripts.bench.slow_tools:SlowGridworld",
        f"env.config={latency}",
        "buffer.max_staleness=4",
        "buffer.over_provision='auto'",
    ]
    return [
        f"model.path={base_model()}",
        f"run.seed={seed}",
        f"rollout.group_size={GROUP_SIZE}",
        f"buffer.groups_per_step={TASKS}",
        f"train.learning_rate={LEARNING_RATE}",
        "train.lr_schedule=constant",
        "train.warmup_steps=0",
        f"train.num_steps={MAX_STEPS}",
        "eval.tasks=0",
        *(tools if slow else []),
    ]


def ours(shared: SharedEngine, seed: int, slow: bool) -> list[list[float]]:
    """Train for all steps; return [seconds since training began, mean reward] of each."""
    config = load_config(RECIPE, overrides(seed, slow))
    check_objective(config)
    shared.reset()
    with (
        tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder,
        RunFolder(Path(folder) / "run") as run,
    ):
        AttachedRun(config, run, shared).run()
        steps = read_metrics(run.path)
    first = steps[0]
    start = first["time"] - first["time/wait_s"] - first["time/train_s"] - first["time/publish_s"]
    return [[step["time"] - start, step["reward/mean"]] for step in steps]


def theirs(peer: str, seed: int, slow: bool) -> list[list[float]]:
    """Train with TRL until the threshold; return the same."""
    latency = {"median_s": MEDIAN_S, "sigma": SIGMA, "seed": seed} if slow else None
    job = {
        "model": base_model(), "seed": seed, "tasks": TASKS, "group_size": GROUP_SIZE, "learning_rate": LEARNING_RATE,
        "max_steps": MAX_STEPS, "threshold": THRESHOLD, "max_tokens_per_turn": 8, "latency": latency,
    }  # fmt: skip
    script = str(Path(__file__).parents[1] / "peers" / "trl_gridworld.py")
    done = subprocess.run(
        [*shlex.split(peer), script, json.dumps(job)],
        stdout=subprocess.PIPE, text=True, timeout=PEER_TIMEOUT_S, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])["steps"]


def reached(steps: list[list[float]]) -> float | None:
    """Seconds until the first step whose mean reward is at the threshold; None when none is."""
    return next((seconds for seconds, reward in steps if reward >= THRESHOLD), None)


def step_s(steps: list[list[float]]) -> float:
    return steps[-1][0] / len(steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", required=True, help="Python of the environment that has TRL")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--slow-tools", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        for seed in range(args.seeds):
            # The engine of one seed is gone before TRL's turn: neither has anything beside it.
            shared = SharedEngine(
                load_config(RECIPE, overrides(seed, args.slow_tools)), Path(folder) / str(seed)
            )
            try:
                mine = ours(shared, seed, args.slow_tools)
            finally:
                shared.stop()
            peers = theirs(args.peer, seed, args.slow_tools)
            runs.append({"seed": seed, "asyncrl": mine, "trl": peers})
            say(f"seed {seed}: asyncrl {reached(mine)} s, TRL {reached(peers)} s")
    result: dict[str, Any] = {"slow_tools": args.slow_tools, "cores": os.cpu_count(), "runs": runs}
    for name in ("asyncrl", "trl"):
        times = [reached(run[name]) for run in runs]
        result[name] = {"reached_s": times, "step_s": spread([step_s(run[name]) for run in runs])}
    ratios = [
        theirs_s / ours_s
        for ours_s, theirs_s in zip(result["asyncrl"]["reached_s"], result["trl"]["reached_s"], strict=True)
        if ours_s and theirs_s
    ]
    result["speedup"] = spread(ratios) if ratios else None
    result["median_s"] = {
        name: statistics.median(t for t in result[name]["reached_s"] if t is not None)
        for name in ("asyncrl", "trl")
        if any(result[name]["reached_s"])
    }
    print(json.dumps({k: v for k, v in result.items() if k != "runs"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
