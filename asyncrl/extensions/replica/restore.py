"""`asyncrl restore REPLICA FOLDER`: a run's ledger, after the node of its buffer is lost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "restore",
        help="make a run's ledger of its replica",
        description="Make FOLDER/ledger.sqlite and its bodies of the folder that buffer.replica named, with everything "
        "that was acknowledged, and check them. FOLDER is the run's; continue with asyncrl train --resume FOLDER.",
    )
    parser.add_argument("replica", type=Path)
    parser.add_argument("folder", type=Path)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.extensions.replica.replica import LEDGER, restore

    found = restore(args.replica, args.folder / LEDGER)
    tasks = ", ".join(f"{number} {state}" for state, number in sorted(found["tasks"].items()) if number)
    print(
        f"{args.folder / LEDGER}: {tasks or 'no tasks'}; {found['bodies']} large bodies, {found['lost']} of them lost"
    )
    return 1 if found["lost"] else 0
