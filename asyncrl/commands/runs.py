"""`asyncrl runs [list|compare|prune|join-token]`"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.clock import age_s
from asyncrl.console import shown
from asyncrl.credentials import JOINS, join_credentials, stored_credentials
from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "runs",
        help="list runs, compare them, delete old ones, let others join them",
        description="List the runs of a folder: state, step, reward, held-out success.",
    )
    parser.set_defaults(run=show, place=Path("runs"))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list the runs of a folder", description="List runs, newest last."
    )
    listing.add_argument("place", nargs="?", type=Path, default=Path("runs"), metavar="FOLDER", help="(runs)")
    listing.set_defaults(run=show)
    compared = commands.add_parser(
        "compare",
        help="put runs beside each other: results, and the settings that differ",
        description="Put runs beside each other: what they reached, and the settings in which they differ.",
    )
    compared.add_argument("folders", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    compared.set_defaults(run=compare)
    pruned = commands.add_parser(
        "prune",
        help="delete old runs",
        description="Delete the runs that are older than an age, but for the newest. A run that is running stays.",
    )
    pruned.add_argument("place", nargs="?", type=Path, default=Path("runs"), metavar="FOLDER", help="(runs)")
    pruned.add_argument("--older-than", default="", metavar="AGE", help="such as 12h, 30d or 8w")
    pruned.add_argument("--keep", type=int, metavar="N", help="runs that stay, the newest first")
    pruned.add_argument("--yes", action="store_true", help="delete without asking")
    pruned.set_defaults(run=prune)
    token = commands.add_parser(
        "join-token",
        help="print a token with which engines, environment services or gateways may join a run",
        description=(
            "Print a token with which processes may join a run, in the roles that are named and in no others. With "
            "the one in RUN/join-token rollout workers may. Whoever has a token for engines decides what is sampled "
            "there, and for environment services or gateways what is rewarded."
        ),
    )
    token.add_argument("folder", type=Path, metavar="RUN", help="folder of the run")
    token.add_argument(
        "--role", action="append", required=True, choices=JOINS, help="may be given several times"
    )
    token.set_defaults(run=join_token)


def join_token(args: argparse.Namespace) -> int:
    """Print credentials to join with."""
    print(join_credentials(stored_credentials(args.folder), args.role).text)
    return 0


def show(args: argparse.Namespace) -> int:
    """List the runs with their state, steps and rewards."""
    from asyncrl.run.runs import find_runs, run_line

    rows = []
    for name, folder in find_runs(args.place).items():
        line = run_line(name, folder)
        rows.append(
            [
                name, line.state, f"{line.step}/{line.num_steps}", _number(line.reward),
                _number(line.success_before), _number(line.success_after), line.environment, line.preset,
                _age(max(0.0, age_s(line.changed))),
            ]
        )  # fmt: skip
    _print_table(
        ["run", "state", "step", "reward", "held out", "after", "environment", "preset", "written"], rows
    )
    return 0


def compare(args: argparse.Namespace) -> int:
    """Print what runs reached, and the settings that are not the same in all of them."""
    from asyncrl.run.differences import differing_settings
    from asyncrl.run.evaluations import evaluations
    from asyncrl.run.runs import read_config, run_folder, run_line

    folders = {str(folder): run_folder(folder, "runs compare") for folder in args.folders}
    if len(folders) < 2:
        raise ConfigError("runs compare: give two runs or more, such as runs/first runs/second")
    lines = {name: run_line(folder.name, folder) for name, folder in folders.items()}
    held_out = {name: {e["when"]: e for e in evaluations(folder)} for name, folder in folders.items()}
    rows = [
        ["state", *(line.state for line in lines.values())],
        ["step", *(f"{line.step}/{line.num_steps}" for line in lines.values())],
        ["reward", *(_number(line.reward) for line in lines.values())],
        *(
            [f"held out {when}", *(_with_interval(found.get(when)) for found in held_out.values())]
            for when in ("before", "after")
        ),
    ]
    configs = {name: read_config(folder) for name, folder in folders.items()}
    for row in differing_settings(configs):
        if row["key"] != "run.name":
            rows.append([row["key"], *(_setting(value) for value in row["values"].values())])
    _print_table(["", *folders], rows)
    return 0


def prune(args: argparse.Namespace) -> int:
    """Delete old runs, after a question."""
    from asyncrl.run.prune import choose_runs, delete_run

    if not args.older_than and args.keep is None:
        raise ConfigError("runs prune: say which with --older-than AGE, --keep N, or both")
    if args.keep is not None and args.keep < 0:
        raise ConfigError(f"--keep {args.keep}: must be at least 0")
    chosen = choose_runs(args.place, _seconds(args.older_than) if args.older_than else 0.0, args.keep or 0)
    for one in chosen:
        what = f"stays: {one.kept_because}" if one.kept_because else f"{one.num_bytes / 2**20:.1f} MiB"
        print(f"{one.folder}  written {_age(max(0.0, age_s(one.changed)))}  {what}")
    going = [one for one in chosen if not one.kept_because]
    if not going:
        print("nothing to delete")
        return 0
    total = (
        f"{len(going)} run{'s' if len(going) != 1 else ''}, {sum(o.num_bytes for o in going) / 2**20:.1f} MiB"
    )
    if not args.yes and not _agreed(f"delete {total}?"):
        print("nothing was deleted")
        return 0
    for one in going:
        delete_run(one.folder)
    print(f"deleted {total}")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal to ask on: give --yes to delete")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _seconds(age: str) -> float:
    """Return an age such as 30d in seconds. Raises `ConfigError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", age)
    if match is None:
        raise ConfigError(f"--older-than {age}: must be a number with m, h, d or w, such as 12h or 30d")
    return float(match[1]) * _UNITS_S[match[2]]


def _age(seconds: float) -> str:
    unit = next((unit for unit in "wdhm" if seconds >= _UNITS_S[unit]), "")
    return f"{seconds / _UNITS_S[unit]:.0f} {unit} ago" if unit else f"{max(0.0, seconds):.0f} s ago"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _with_interval(evaluation: dict[str, Any] | None) -> str:
    if evaluation is None:
        return ""
    low, high = evaluation["ci_low"], evaluation["ci_high"]
    interval = f" [{low:.3f}, {high:.3f}]" if low is not None and high is not None else ""
    return f"{evaluation['what']} {evaluation['mean']:.3f}{interval}"


def _setting(value: Any) -> str:
    return "unset" if value is None else str(value)


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print columns; a reader of the output gets whole lines, whatever the width of a terminal."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        print(shown("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()))
