"""`asyncrl monitor [RUN|FOLDER]`"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).with_name("grafana.json")


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "monitor",
        help="see runs in a browser: curves, timeline, trajectories",
        description="Serve web pages that show runs while they train and afterwards. Open the printed link; it holds "
        "the token without which nothing is shown.",
    )
    parser.add_argument(
        "place", nargs="?", type=Path, default=Path("runs"), help="a run, or a folder of runs (runs)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8090, help="port to listen on; 0 takes a free one (8090)")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the token to ask for (a new one at each start)",
    )
    parser.add_argument("--ready-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument(
        "--export", type=Path, metavar="FILE", help="write one HTML file that shows them, and end"
    )
    parser.add_argument(
        "--grafana", type=Path, metavar="FILE", help="write a Grafana dashboard of what /metrics has, and end"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.grafana:
        _write("--grafana", args.grafana, DASHBOARD.read_text(encoding="utf-8"))
        return 0
    if args.export:
        return _export(args.place, args.export)
    from asyncrl.credentials import read_credentials
    from asyncrl.extensions.monitor.service import monitor_app
    from asyncrl.services.http.app import serve

    token = _read(args.token_file).strip() if args.token_file else secrets.token_urlsafe(24)
    app = monitor_app(
        args.place, read_credentials(token, f"--token-file {args.token_file}").access("monitor")
    )

    def say(url: str) -> None:
        print(f"{args.place}: open {url}/#token={token}\nCtrl-C ends it", file=sys.stderr, flush=True)

    serve(app, args.host, args.port, args.ready_file, serving=say)
    return 0


def _read(file: Path) -> str:
    from asyncrl.errors import ConfigError

    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--token-file {file}: cannot be read: {error.strerror}") from error


def _write(option: str, file: Path, text: str) -> None:
    from asyncrl.errors import ConfigError

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {file}: cannot be written: {error.strerror}") from error


def _export(place: Path, file: Path) -> int:
    from asyncrl.extensions.monitor.episodes import EpisodeTable
    from asyncrl.extensions.monitor.export import exported_page
    from asyncrl.extensions.monitor.steps import StepColumns
    from asyncrl.extensions.monitor.tokens import TokenTexts
    from asyncrl.run.runs import find_runs

    runs = {
        name: (folder, StepColumns(folder), EpisodeTable(folder), TokenTexts(folder))
        for name, folder in find_runs(place).items()
    }
    _write("--export", file, exported_page(runs))
    print(
        f"{file}: {len(runs)} run{'s' if len(runs) != 1 else ''}, {file.stat().st_size / 2**20:.1f} MiB",
        file=sys.stderr,
    )
    return 0
