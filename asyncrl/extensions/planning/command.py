"""`asyncrl plan`, with `memory RECIPE` and `cluster RECIPE`; other extensions add further kinds."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.jsonfile import write_json

ASSUMED = 80 * 2**30
"""Bytes of a GPU where none is given and none is there."""
UNITS = {"GIB": 2**30, "GB": 10**9, "MIB": 2**20, "MB": 10**6}


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser("plan", help="predict what a run takes, without starting it")
    kinds = parser.add_subparsers(title="what to predict", metavar="WHAT", required=True)
    for row in rows("plans"):
        row.load()(kinds)


def add_memory(kinds: Any) -> None:
    """Add `asyncrl plan memory`. kinds: argparse's subparsers, of `asyncrl plan`."""
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


def add_cluster(kinds: Any) -> None:
    """Add `asyncrl plan cluster`. kinds: argparse's subparsers, of `asyncrl plan`."""
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


def run_memory(args: argparse.Namespace) -> int:
    from asyncrl.extensions.planning.load import load_for_gpus
    from asyncrl.extensions.planning.machine import gpu_memory
    from asyncrl.extensions.planning.predict import Planner
    from asyncrl.extensions.planning.report import as_json, as_text
    from asyncrl.launch.checks.check import check_recipe

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


def run_cluster(args: argparse.Namespace) -> int:
    from asyncrl.extensions.planning.job import job_needs
    from asyncrl.extensions.planning.load import load_for_gpus
    from asyncrl.launch.checks.check import check_recipe
    from asyncrl.launch.cluster import cluster_kinds, cluster_request

    if args.nodes < 1 or args.gpus < 0:
        raise ConfigError(f"--nodes must be 1 or more and --gpus 0 or more, got {args.nodes} and {args.gpus}")
    config = load_for_gpus(args.recipe, args.overrides)
    check_recipe(config)
    request = cluster_request(config, config.run.name or "run", args.nodes, args.gpus)
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


def parse_size(text: str) -> int:
    """Return the bytes that "80GiB", "80 GB" or "24576MiB" means. Raises `ConfigError`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)", text.strip())
    if match is None or match[2].upper() not in UNITS or float(match[1]) <= 0:
        raise ConfigError(
            f"--gpu: must be a number and a unit ({', '.join(UNITS)}), such as 80GiB, got {text!r}"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])
