"""`asyncrl plan run RECIPE` and `asyncrl plan published`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.jsonfile import write_json


def add_run(kinds: Any) -> None:
    """Add `asyncrl plan run`. kinds: argparse's subparsers, of `asyncrl plan`."""
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
        help="a100-40, a100-80, rtx4090, l40s, h20, h100 (default), h200 or b200",
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


def add_published(kinds: Any) -> None:
    """Add `asyncrl plan published`. kinds: argparse's subparsers, of `asyncrl plan`."""
    published = kinds.add_parser(
        "published",
        help="published speed-ups of asynchronous training beside simulated ones",
        description="Simulate the set-ups of published comparisons of asynchronous with synchronous training by the "
        "cost models of `plan run`, and print both speed-ups with what is assumed. Takes half a minute.",
    )
    published.add_argument("--json", type=Path, metavar="OUT", help="write all figures there, too")
    published.set_defaults(run=run_published)


def run_plan(args: argparse.Namespace) -> int:
    if args.gpus < 1 or args.steps < 2:
        raise ConfigError(f"--gpus must be 1 or more and --steps 2 or more, got {args.gpus} and {args.steps}")
    return _plan_as_recorded(args) if args.calibrate else _plan_gpus(args)


def _plan_gpus(args: argparse.Namespace) -> int:
    from asyncrl.extensions.planning.load import load_for_gpus
    from asyncrl.extensions.simulation.hardware import gpu_named
    from asyncrl.extensions.simulation.report import candidates_text, layout_name, outcome_json
    from asyncrl.extensions.simulation.search import search
    from asyncrl.extensions.simulation.workload import DrawnWorkload

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
    from asyncrl.extensions.simulation.calibrate import calibrate
    from asyncrl.extensions.simulation.report import HEADER, outcome_json, outcome_text
    from asyncrl.extensions.simulation.search import SCHEDULES, try_layout, with_schedule
    from asyncrl.launch.models.local_models import load_recipe

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


def run_published(args: argparse.Namespace) -> int:
    from asyncrl.extensions.simulation.published import SETUPS, as_json, as_text, compare

    found = []
    for setup in SETUPS:
        print(setup.name, file=sys.stderr)
        found.append(compare(setup))
    print(as_text(found))
    if args.json:
        write_json(args.json, {one.setup.name: as_json(one) for one in found}, indent=1)
    return 0
