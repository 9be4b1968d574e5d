"""`asyncrl top RUN`"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "top",
        help="watch a running job: processes, buffer, throughput, reward",
        description="Show what a run does until it ends: step, reward, staleness, buffer, and for each process its "
        "pid, processor time, memory and restarts. Without a terminal, or with NO_COLOR, it prints plain lines.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run's folder, such as runs/NAME")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="between two looks (2)")
    parser.add_argument("--once", action="store_true", help="look once, and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from rich.live import Live

    from asyncrl.errors import ConfigError
    from asyncrl.launch.reports.panel import RunPanel, draws_panels, plain_lines
    from asyncrl.run.runs import run_folder, run_line

    folder = run_folder(args.folder, "top")
    if not 0.1 <= args.every <= 3600:
        raise ConfigError(f"--every {args.every:g}: must be from 0.1 to 3600 seconds")
    panel = RunPanel(folder)

    def runs() -> bool:
        return not args.once and run_line(folder.name, folder).state == "running"

    if not draws_panels(sys.stdout):
        print(plain_lines(panel), end="", flush=True)
        while runs():
            time.sleep(args.every)
            print(f"\n{plain_lines(panel)}", end="", flush=True)
        return 0
    with Live(panel, auto_refresh=False) as live:
        while runs():
            time.sleep(args.every)
            live.refresh()
    return 0
