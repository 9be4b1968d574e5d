"""`asyncrl replay FILE`: repeat the step of poisoned groups."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "replay",
        help="repeat the step of groups that made a loss or gradient NaN",
        description="Repeat the step of a file under runs/NAME/poison/ on this machine with one rank, and report which "
        "group makes which number NaN or infinite. Exit code 0 if none does, 1 otherwise.",
    )
    parser.add_argument("file", type=Path)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.train.poison import replay

    found = replay(args.file)
    for index, group in enumerate(found.group_ids):
        now = found.report.poisoned.get(index, "finite")
        print(f"group {group}: {now} (when recorded: {found.recorded.get(group, 'unknown')})")
    for name in ("loss/total", "grad_norm"):
        if name in found.report.metrics:
            print(f"{name} of the others: {found.report.metrics[name]:.6g}")
    return 1 if found.report.poisoned else 0
