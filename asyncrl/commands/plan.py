"""`asyncrl plan memory RECIPE [key=value ...]`"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json

ASSUMED = 80 * 2**30
"""Bytes of a GPU where none is given and none is there."""
UNITS = {"GIB": 2**30, "GB": 10**9, "MIB": 2**20, "MB": 10**6}


def add(subparsers: Any) -> None:
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


def run_memory(args: argparse.Namespace) -> int:
    from asyncrl.launch.check import check_recipe
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


def parse_size(text: str) -> int:
    """Return the bytes that "80GiB", "80 GB" or "24576MiB" means. Raises `ConfigError`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)", text.strip())
    if match is None or match[2].upper() not in UNITS or float(match[1]) <= 0:
        raise ConfigError(
            f"--gpu: must be a number and a unit ({', '.join(UNITS)}), such as 80GiB, got {text!r}"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])
