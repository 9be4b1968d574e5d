"""`asyncrl plan memory RECIPE`, `asyncrl plan run RECIPE` and `asyncrl plan published`."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

ASSUMED = 80 * 2**30
"""Bytes of a GPU where none is given and none is there."""
UNITS = {"GIB": 2**30, "GB": 10**9, "MIB": 2**20, "MB": 10**6}


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("plan", help="predict what a run takes, without starting it")
    kinds = parser.add_subparsers(title="what to predict", metavar="WHAT", required=True)
    memory = kinds.add_parser(
        "memory",
        help="the GPU memory of engine and trainer",
        description="Run a step of the recipe's longest rows on tensors without memory, and print what each GPU holds "
        "at its peak. The exit code is 0 where it fits, 1 where not, 2 for wrong input.",
    )
    memory.add_argument("recipe", help="as for `asyncrl train`")
    memory.add_argument("overrides", nargs="*", metavar="key=value")
    memory.add_argument(
        "--gpu", default="", metavar="SIZE", help="memory of one GPU, such as 80GiB; left out, this machine's"
    )
    memory.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="number of GPUs; left out, this machine's"
    )
    memory.add_argument("--json", type=Path, metavar="OUT", help="write the prediction there, too")
    memory.set_defaults(run=run_memory)
    _add_run(kinds)
    cluster = kinds.add_parser(
        "cluster",
        help="what a job on a cluster will ask for",
        description="Print what `asyncrl train --render` would ask a cluster for: machines, GPUs, memory of the host, "
        "room for the run folder, and what runs on which machine. Nothing is written or submitted.",
    )
    cluster.add_argument("recipe", help="as for `asyncrl train`")
    cluster.add_argument("overrides", nargs="*", metavar="key=value")
    cluster.add_argument("--nodes", type=int, default=1, metavar="N", help="machines of the whole run (1)")
    cluster.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of each (0)")
    cluster.add_argument(
        "--site", type=Path, metavar="FILE", help="what the cluster asks of every job, as in TOML"
    )
    cluster.set_defaults(run=run_cluster)
    published = kinds.add_parser(
        "published",
        help="published speed-ups of asynchronous training beside simulated ones",
        description="Simulate the set-ups of published comparisons of asynchronous with synchronous training by the "
        "cost models of `plan run`, and print both speed-ups with what is assumed. Takes half a minute.",
    )
    published.add_argument("--json", type=Path, metavar="OUT", help="write all figures there, too")
    published.set_defaults(run=run_published)


def _add_run(kinds: Any) -> None:
    run = kinds.add_parser(
        "run",
        help="throughput, idle time and staleness on so many GPUs",
        description="Simulate the recipe on a virtual clock, with the ledger, rollout loop and router that a run "
        "has, under each schedule and each split of the GPUs. With --calibrate, costs and episodes are those of a run "
        "that was made, and its own machine is simulated.",
    )
    run.add_argument("recipe", help="as for `asyncrl train`")
    run.add_argument("overrides", nargs="*", metavar="key=value")
    run.add_argument("--gpus", type=int, default=8, metavar="N", help="number of GPUs (8)")
    run.add_argument(
        "--device",
        default="h100",
        metavar="NAME",
        help="a100-40, a100-80, l40s, h20, h100 (default), h200 or b200",
    )
    run.add_argument("--calibrate", type=Path, metavar="RUN", help="folder of a run of a minute or more")
    run.add_argument("--steps", type=int, default=8, metavar="N", help="steps to simulate of each layout (8)")
    run.add_argument("--turns", type=int, default=1, metavar="N", help="turns of an episode (1)")
    run.add_argument("--prompt-tokens", type=int, default=500, metavar="N", help="tokens of a prompt (500)")
    run.add_argument(
        "--turn-tokens", type=float, default=0, metavar="N",
        help="median of the tokens sampled in a turn; a quarter of rollout.max_tokens_per_turn where left out",
    )  # fmt: skip
    run.add_argument(
        "--observed-tokens", type=int, default=100, metavar="N", help="tokens of an observation (100)"
    )
    run.add_argument(
        "--tool-s", type=float, default=0.0, metavar="S", help="median seconds of a tool call (0)"
    )
    run.add_argument("--json", type=Path, metavar="OUT", help="write all layouts there, too")
    run.set_defaults(run=run_plan)


def run_memory(args: argparse.Namespace) -> int:
    from asyncrl.launch.checks.check import check_recipe
    from asyncrl.plan.load import load_for_gpus
    from asyncrl.plan.machine import gpu_memory
    from asyncrl.plan.predict import Planner
    from asyncrl.plan.report import as_json, as_text

    if args.gpus < 0:
        raise ConfigError(f"--gpus: must be 1 or more, got {args.gpus}")
    found = gpu_memory()
    gpu = parse_size(args.gpu) if args.gpu else min(found, default=ASSUMED)
    if not args.gpu and not found:
        print("no GPU was found and --gpu was not given: 80 GiB are assumed", file=sys.stderr)
    config = load_for_gpus(args.recipe, args.overrides)
    check_recipe(config)
    planner = Planner(gpu, args.gpus or (len(found) if found and not args.gpu else 1))
    # What libraries say when they are imported is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        prediction = planner.advise(planner.predict(config))
    print(as_text(prediction))
    if args.json:
        write_json(args.json, as_json(prediction), indent=1)
    return 0 if prediction.fits else 1


def run_plan(args: argparse.Namespace) -> int:
    if args.gpus < 1 or args.steps < 2:
        raise ConfigError(f"--gpus must be 1 or more and --steps 2 or more, got {args.gpus} and {args.steps}")
    return _plan_as_recorded(args) if args.calibrate else _plan_gpus(args)


def run_cluster(args: argparse.Namespace) -> int:
    from asyncrl.launch.checks.check import check_recipe
    from asyncrl.launch.cluster import cluster_kinds
    from asyncrl.plan.job import job_needs, job_request
    from asyncrl.plan.load import load_for_gpus

    if args.nodes < 1 or args.gpus < 0:
        raise ConfigError(f"--nodes must be 1 or more and --gpus 0 or more, got {args.nodes} and {args.gpus}")
    config = load_for_gpus(args.recipe, args.overrides)
    check_recipe(config)
    request = job_request(config, config.run.name or "run", args.nodes, args.gpus)
    asked = [line for kind in cluster_kinds().values() for line in kind.asks(args, config, request)]
    needs = job_needs(config, args.gpus)
    print(f"{args.nodes} machine(s) with {args.gpus} GPU(s) each")
    print(
        f"  memory            {needs.memory_gib:>6} GiB each, {needs.shared_memory_gib} GiB of it in /dev/shm"
    )
    print(f"  run folder        {needs.storage_gib:>6} GiB on the head, on a disk that outlives the job")
    for line in asked:
        print(line)
    return 0


def run_published(args: argparse.Namespace) -> int:
    from asyncrl.simulation.published import SETUPS, as_json, as_text, compare

    found = []
    for setup in SETUPS:
        print(setup.name, file=sys.stderr)
        found.append(compare(setup))
    print(as_text(found))
    if args.json:
        write_json(args.json, {one.setup.name: as_json(one) for one in found}, indent=1)
    return 0


def _plan_gpus(args: argparse.Namespace) -> int:
    from asyncrl.plan.load import load_for_gpus
    from asyncrl.simulation.hardware import gpu_named
    from asyncrl.simulation.report import candidates_text, layout_name, outcome_json
    from asyncrl.simulation.search import search
    from asyncrl.simulation.workload import DrawnWorkload

    gpu, config = gpu_named(args.device), load_for_gpus(args.recipe, args.overrides)
    most = config.rollout.max_tokens_per_turn
    workload = DrawnWorkload(
        turns=args.turns,
        prompt_tokens=args.prompt_tokens,
        sampled_tokens=args.turn_tokens or most / 4,
        max_sampled_tokens=most,
        observed_tokens=args.observed_tokens,
        tool_s=args.tool_s,
    )
    print(
        f"{args.gpus} x {args.device}, episodes of {workload.turns} turn(s), {workload.prompt_tokens} prompt tokens, "
        f"{workload.sampled_tokens:g} (median) sampled ones a turn, tools {workload.tool_s:g} s; "
        "engines at speeds that published rates bear out, a trainer's from data sheets"
    )
    found = search(config, gpu, args.gpus, workload, args.steps, lambda line: print(line, file=sys.stderr))
    print(candidates_text(found))
    if args.json:
        rows = [
            {"layout": layout_name(one), "changes": one.layout.changes(), **outcome_json(one.outcome)}
            for one in found
        ]
        write_json(args.json, rows, indent=1)
    return 0


def _plan_as_recorded(args: argparse.Namespace) -> int:
    from asyncrl.launch.models.local_models import load_recipe
    from asyncrl.simulation.calibrate import calibrate
    from asyncrl.simulation.report import HEADER, outcome_json, outcome_text
    from asyncrl.simulation.search import SCHEDULES, try_layout, with_schedule

    config = load_recipe(args.recipe, args.overrides)
    found = calibrate(args.calibrate)
    print(
        f"calibrated on {args.calibrate}: {found.groups_per_hour:,.0f} groups/h measured, "
        f"{found.simulated_groups_per_hour:,.0f} simulated, engine time x {found.factor:.2f}"
    )
    print(HEADER)
    rows: dict[str, Any] = {}
    for name in ("the recipe as it is", *SCHEDULES):
        changed = config if name not in SCHEDULES else with_schedule(config, name)
        outcome = try_layout(changed, found.costs, found.workload, config.engine.count, args.steps)
        if outcome is not None:
            print(outcome_text(name, outcome, 0))
            rows[name] = outcome_json(outcome)
    if args.json:
        write_json(args.json, rows, indent=1)
    return 0


def parse_size(text: str) -> int:
    """Return the bytes that "80GiB", "80 GB" or "24576MiB" means. Raises `ConfigError`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)", text.strip())
    if match is None or match[2].upper() not in UNITS or float(match[1]) <= 0:
        raise ConfigError(
            f"--gpu: must be a number and a unit ({', '.join(UNITS)}), such as 80GiB, got {text!r}"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])
