"""Compares the schedules on an agentic workload with heavy-tailed tool latency, in one run.

    python scripts/bench/bench_async.py [--repeats 3] [--steps 24] [--seed 0]
        [--only NAME,...] [--no-critic] [--json OUT]

Gridworld with its tiny base model; every move waits for a tool whose latency is log-normal (recorded seed). Each repeat
trains once under every schedule of `train.schedule`, all on one engine, from the same weights, for as many steps, with
the same objective. A schedule's rate is trained groups per hour of training; ratios are taken within a repeat. The JSON
has

    speedup_async_over_sync   trained groups per hour, partial over synchronous: median, min, max
    bound_fraction            partial's rate over the bound, from its first commit to its last: median
    bound_fraction_cores      the same with the cores that engine and trainer share as a further bound
    bound_fraction_whole      bound_fraction with the wait for the first batch, in which there is nothing to train
    bound_fraction_unstolen   bound_fraction of seconds less the share of processor time that the host took
    schedules                 rate, success before and after, staleness, busy shares of every schedule, and the
                              processor milliseconds of a trained group by process

The bound is the rate of the engine or the trainer, whichever is slower with the whole machine to itself, measured in
the same repeat. The trainer's seconds per group are those it takes right after the partial run to train on the same
batches again, without waiting for any (`trainer_alone.py`). The engine's are those of the turns in these batches, at
the seconds per turn it takes without latency and without a trainer, before and after training. The bound of the cores
is the processor seconds per group of both, from the same measurements, over the number of cores.

The objective is PPO with a critic, for which the trainer is slower than the engine. With `--no-critic` it is GRPO,
for which both need about the same time. `periodic` supports only GRPO, in one minibatch a step.

The host of a virtual machine may give processor time to others (`stolen.py`), more of it while one core works than
while both do; `bound_fraction_unstolen` estimates a machine without neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from process_times import ProcessTimes
from prometheus_client.parser import text_string_to_metric_families
from stolen import StolenTime

from asyncrl.config import Config, load_config
from asyncrl.config_checks import check_objective
from asyncrl.credentials import authorization, bearer
from asyncrl.env.registry import load_env
from asyncrl.extensions.study.attached_run import AttachedRun, SharedEngine
from asyncrl.launch.evaluation.evaluate import evaluate
from asyncrl.launch.models.base_model import cached_base_model
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.run.folder import RunFolder
from asyncrl.run.metrics import read_metrics

ROOT = str(Path(__file__).parents[2])
# The environment is in this folder: it is imported here and by the processes of the runs.
sys.path.append(ROOT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH", "")]))
RECIPE = "gridworld_grpo"
MEDIAN_S, SIGMA = 0.1, 1.2
OVERLAPPED = ["buffer.max_staleness=16", "rollout.batch_delay_s=0.05"]
AS_NEEDED = "buffer.over_provision='auto'"
SCHEDULES = {
    "synchronous": ["train.schedule=synchronous"],
    "periodic": ["train.schedule=periodic", "train.num_minibatches=1"],
    "one_step_off": ["train.schedule=one_step_off"],
    "asynchronous": ["train.schedule=asynchronous", *OVERLAPPED, AS_NEEDED],
    "partial": ["train.schedule=partial", *OVERLAPPED, AS_NEEDED],
    "partial_all": ["train.schedule=partial", *OVERLAPPED],
    "partial_beginning_anew": ["train.schedule=partial", *OVERLAPPED, AS_NEEDED, "buffer.recycle=false"],
}
"""`partial_all` keeps as many groups in flight as the staleness limit admits, the others as many as the trainer
needs; the last one is partial without recycling: groups that a commit interrupts are started over."""
COMMON = [
    "env.name=scripts.bench.slow_tools:SlowGridworld",
    "rollout.group_size=8",
    "buffer.groups_per_step=16",
    "train.num_minibatches=2",
    "algo.preset=ppo_ewma",
    "train.learning_rate=4e-4",
    "train.lr_schedule=constant",
    "train.warmup_steps=0",
    "eval.tasks=100",
]
"""The proximal policy that tolerates the most staleness (docs/benchmarks.md)."""
CRITIC = ['algo.advantage={name="gae"}', 'algo.normalize={name="tokens"}', "algo.value.learning_rate=1e-3"]
ALONE_TASKS = 48


def overrides(args: argparse.Namespace, schedule: str, repeat: int) -> list[str]:
    latency = f"{{latency_median_s={MEDIAN_S}, latency_sigma={SIGMA}, latency_seed={args.seed + repeat}}}"
    own = [f"env.config={latency}", f"run.seed={args.seed + repeat}", f"train.num_steps={args.steps}"]
    critic = [] if args.no_critic or schedule == "periodic" else CRITIC
    return [*COMMON, *critic, *SCHEDULES[schedule], *own, f"model.path={base_model()}"]


def base_model() -> str:
    """The base model of the recipe, which is trained without latency."""
    return str(cached_base_model(load_config(RECIPE)))


def train(shared: SharedEngine, config: Config, stolen: StolenTime, alone: bool = False) -> dict[str, Any]:
    """Train once from the base weights; return what the table shows. Times in seconds.

    `alone` trains on the same batches again, with nothing else running.
    """
    check_objective(config)
    shared.reset()
    processes = ProcessTimes()
    with (
        tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder,
        RunFolder(Path(folder) / "run") as run,
    ):
        try:
            summary = AttachedRun(config, run, shared).run()
        finally:
            processes.stop()
        trainer = json.loads((run.path / "trainer.json").read_text())
        steps = read_metrics(run.path)
        after = {"trainer_alone": trainer_alone(shared, run.path, stolen)} if alone else {}
    groups, wall_s = summary["groups"]["trained"], summary["train_wall_s"]
    return {
        "groups": groups,
        "wall_s": wall_s,
        "groups_per_hour": 3600 * groups / wall_s,
        "groups_per_hour_after_first": rate_after_first(steps),
        "trainer_s_per_group": (trainer["busy_s"] + trainer["publish_s"]) / groups,
        "turns_per_group": turns_per_group(steps),
        "cpu_ms_per_group": cpu_ms_per_group(processes, steps),
        **after,
        "stolen": stolen.share(steps[0]["time"], steps[-1]["time"]),
        "busy": summary["busy"],
        "staleness": {name: summary["staleness"][name] for name in ("mean", "max")},
        "success_before": summary["eval_before"]["mean"],
        "success_after": summary["eval_after"]["mean"],
        "tokens": summary["tokens"],
    }


def rate_after_first(steps: Sequence[dict[str, Any]]) -> float:
    """Return trained groups per hour from the first step's end to the last's."""
    return 3600 * sum(step["batch/groups"] for step in steps[1:]) / (steps[-1]["time"] - steps[0]["time"])


def cpu_ms_per_group(processes: ProcessTimes, steps: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the processor milliseconds of a trained group in each process, from the first step's end to the last's."""
    groups = sum(step["batch/groups"] for step in steps[1:])
    used_s = processes.used_s(steps[0]["time"], steps[-1]["time"])
    return {role: 1e3 * seconds / groups for role, seconds in sorted(used_s.items())}


def turns_per_group(steps: Sequence[dict[str, Any]]) -> float:
    """Return the turns of a trained group, from the first step's end to the last's."""
    turns = sum(step["turns/mean"] * step["batch/sequences"] for step in steps[1:])
    return turns / sum(step["batch/groups"] for step in steps[1:])


def trainer_alone(shared: SharedEngine, run: Path, stolen: StolenTime) -> dict[str, float]:
    """Measure what the trainer needs for a group of the batches of `run` with nothing else running."""
    shared.reset()
    script = str(Path(__file__).with_name("trainer_alone.py"))
    command = [sys.executable, script, str(run), "--model", shared.model, "--engine", shared.child.url]
    command += ["--weights", str(shared.weights)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return _alone(stolen, found["start"], found["end"], found["groups"])


def _alone(stolen: StolenTime, start: float, end: float, count: float) -> dict[str, float]:
    """Seconds and processor seconds of each of `count`, and the stolen share."""
    return {
        "s": (end - start) / count,
        "cpu_s": stolen.used_s(start, end) / count,
        "stolen": stolen.share(start, end),
    }


def turns_served(engine_url: str) -> float:
    """Return how many requests an engine has finished."""
    request = urllib.request.Request(f"{engine_url}/metrics", headers=authorization(bearer(None, "engine")))
    with urllib.request.urlopen(request, timeout=10) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "vllm:request_success_total"
    )


def engine_alone(shared: SharedEngine, config: Config, stolen: StolenTime) -> dict[str, float]:
    """What the engine needs for a turn without latency, all of its capacity used and nothing else running."""
    plain = config.env.model_copy(update={"name": "gridworld", "config": {}})
    config = config.model_copy(update={"env": plain})
    load_env(config.env.name)
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(config.model_dump_json())
        process_group = ProcessGroup(folder)
        try:
            argv = ["serve", "rollout", "--folder", name, "--model", shared.model]
            worker = process_group.start("rollout", [*argv, "--engines", shared.child.url])
            url = process_group.wait_ready(worker, 60.0)
            size = config.rollout.group_size
            evaluate(url, config, config.env.name, 4, size)
            before, start = turns_served(shared.child.url), time.time()
            evaluate(url, config, config.env.name, ALONE_TASKS, size)
            end = time.time()
            return _alone(stolen, start, end, turns_served(shared.child.url) - before)
        finally:
            process_group.stop()


def one_repeat(
    shared: SharedEngine, args: argparse.Namespace, repeat: int, stolen: StolenTime
) -> dict[str, Any]:
    """Train under every schedule and measure the engine alone, before and after training."""
    names = args.only.split(",") if args.only else list(SCHEDULES)
    configs = {name: load_config(RECIPE, overrides(args, name, repeat)) for name in names}
    found: dict[str, Any] = {}
    shared.reset()
    engine = [engine_alone(shared, configs[names[0]], stolen)]
    for name, config in configs.items():
        found[name] = train(shared, config, stolen, alone=name == "partial")
        say(f"repeat {repeat} {name}: {json.dumps(found[name])}")
    engine.append(engine_alone(shared, configs[names[-1]], stolen))
    return {"schedules": found, "engine_alone": engine}


def summarize(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and ranges over repeats; ratios within each."""
    names = list(repeats[0]["schedules"])
    rates = {name: [r["schedules"][name]["groups_per_hour"] for r in repeats] for name in names}
    result: dict[str, Any] = {
        "schedules": {
            name: {
                "groups_per_hour": spread(rates[name]),
                **{
                    key: spread([r["schedules"][name][key] for r in repeats])
                    for key in ("success_before", "success_after", "wall_s")
                },
                "staleness_max": max(r["schedules"][name]["staleness"]["max"] for r in repeats),
            }
            for name in names
        },
    }
    if "synchronous" in rates:
        result["speedup_over_sync"] = {
            name: spread([a / b for a, b in zip(rates[name], rates["synchronous"], strict=True)])
            for name in names
        }
    if {"synchronous", "partial"} <= set(rates):
        result["speedup_async_over_sync"] = result["speedup_over_sync"]["partial"]
    if "partial" in rates:
        result |= bound_fractions(repeats)
    return result


def bound_fractions(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how close partial came to the bound: median and range over repeats."""
    result = {}
    cores = os.cpu_count() or 1
    for name, rate, corrected, shared in (
        ("bound_fraction", "groups_per_hour_after_first", False, False),
        ("bound_fraction_cores", "groups_per_hour_after_first", False, True),
        ("bound_fraction_whole", "groups_per_hour", False, False),
        ("bound_fraction_unstolen", "groups_per_hour_after_first", True, False),
    ):
        reached = []
        for repeat in repeats:
            run = repeat["schedules"]["partial"]
            trainer, turns = run["trainer_alone"], run["turns_per_group"]
            turn_s = statistics.fmean(given_s(one, corrected) for one in repeat["engine_alone"])
            bound_s = max(given_s(trainer, corrected), turns * turn_s)
            if shared:
                turn_cpu_s = statistics.fmean(one["cpu_s"] for one in repeat["engine_alone"])
                bound_s = max(bound_s, (trainer["cpu_s"] + turns * turn_cpu_s) / cores)
            run_s = given_s({"s": 3600 / run[rate], "stolen": run["stolen"]}, corrected)
            reached.append(bound_s / run_s)
        result[name] = statistics.median(reached)
        result[f"{name}_range"] = [min(reached), max(reached)]
    return result


def given_s(measured: dict[str, float], corrected: bool) -> float:
    """Seconds, less the stolen share where `corrected`."""
    return measured["s"] * (1 - measured["stolen"] if corrected else 1)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help=f"schedules, separated by commas: {', '.join(SCHEDULES)}")
    parser.add_argument("--no-critic", action="store_true", help="train with GRPO")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    repeats, stolen = [], StolenTime()
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-") as folder:
        first = load_config(RECIPE, overrides(args, "partial", 0))
        shared = SharedEngine(first, Path(folder))
        try:
            for repeat in range(args.repeats):
                repeats.append(one_repeat(shared, args, repeat, stolen))
        finally:
            shared.stop()
            stolen.stop()
    result = {
        "latency": {"distribution": "log-normal", "median_s": MEDIAN_S, "sigma": SIGMA, "seed": args.seed},
        "cores": os.cpu_count(),
        "load_before": load_before,
        "steps": args.steps,
        "critic": not args.no_critic,
        "repeats": repeats,
        **summarize(repeats),
    }
    print(json.dumps({k: v for k, v in result.items() if k != "repeats"}, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
