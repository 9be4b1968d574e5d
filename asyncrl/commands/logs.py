"""`asyncrl logs RUN [ROLE]`"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.console import shown

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

LOOK_S = 0.25


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "logs",
        help="print the logs of a run's processes",
        description="Print the end of the log of each process of a run, or of those of one role.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run's folder, such as runs/NAME")
    parser.add_argument(
        "role",
        nargs="?",
        default="",
        metavar="ROLE",
        help="a process, such as engine-0, or a role, such as engine",
    )
    parser.add_argument(
        "--lines", type=int, default=20, metavar="N", help="lines of each log (20); 0 prints all"
    )
    parser.add_argument("--follow", "-f", action="store_true", help="print what is added, until the run ends")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.errors import ConfigError
    from asyncrl.run.logs import LogTails
    from asyncrl.run.runs import run_folder, run_line

    folder = run_folder(args.folder, "logs")
    if args.lines < 0:
        raise ConfigError(f"--lines {args.lines}: must be at least 0")
    tails, output = LogTails(folder, args.role), _Output()
    output.print(tails.ends(args.lines))
    ended = not args.follow
    while not ended:
        ended = run_line(folder.name, folder).state != "running"
        output.print(tails.added(whole_lines=not ended))
        if not ended:
            time.sleep(LOOK_S)
    return 0


class _Output:
    """Prints text by process, under a line with its name where that has changed."""

    def __init__(self) -> None:
        self._name = ""

    def print(self, parts: Iterable[tuple[str, str]]) -> None:
        for name, text in parts:
            if name != self._name:
                print(shown(f"==> {name} <=="))
                self._name = name
            print(shown(text), end="" if text.endswith("\n") else "\n", flush=True)
