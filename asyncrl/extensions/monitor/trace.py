"""`asyncrl trace RUN`"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "trace",
        help="export a run's timeline for Perfetto or Chrome",
        description="Write what a run's trainer, engines, buffer and processes did as a trace that ui.perfetto.dev and "
        "chrome://tracing open.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="a run's folder, such as runs/NAME")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (RUN/trace.json)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.errors import ConfigError
    from asyncrl.extensions.monitor.chrome_trace import chrome_trace
    from asyncrl.run.json_lines import JsonLines
    from asyncrl.run.metrics import read_metrics
    from asyncrl.run.runs import run_folder

    folder = run_folder(args.folder, "trace")
    records = (JsonLines(folder / name).refresh() for name in ("activity.jsonl", "restarts.jsonl"))
    trace = chrome_trace(read_metrics(folder), *records)
    file = args.out or args.folder / "trace.json"
    try:
        file.write_text(json.dumps(trace), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    print(f"{file}: {len(trace['traceEvents'])} events; open it at https://ui.perfetto.dev")
    return 0
