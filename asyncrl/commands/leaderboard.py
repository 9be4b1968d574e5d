"""`asyncrl leaderboard FOLDER`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.errors import ConfigError

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

PAGE = "leaderboard"


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "leaderboard",
        help="put evaluations of checkpoints on one page: scores, differences, regressions",
        description="Put all evaluations that `asyncrl eval --suite` and --on left in a folder on one page: "
        "checkpoints by suites and data sets, with 95%% intervals, and paired differences from one of "
        "them, regressions first.",
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("evals"), metavar="FOLDER", help="(evals)"
    )
    parser.add_argument(
        "--against",
        default="",
        metavar="CHECKPOINT",
        help="what others are compared with (the one evaluated on most)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help=f"where {PAGE}.html, .md and .json go (the same folder)"
    )
    parser.add_argument(
        "--fail-on-regression", action="store_true", help="exit with 1 where a score is surely lower, for CI"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.evaluation.leaderboard import leaderboard, leaderboard_tables, read_columns
    from asyncrl.evaluation.tables import Cell, difference, html_page, markdown_page
    from asyncrl.jsonfile import write_json

    if not args.folder.is_dir():
        raise ConfigError(f"leaderboard: there is no folder {args.folder}")
    board = leaderboard(read_columns(args.folder), args.against)
    tables = leaderboard_tables(board)
    summary = f"Checkpoints: {len(board['checkpoints'])}. Suites and data sets: {len(board['columns'])}."
    out = args.out or args.folder
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{PAGE}.json", board, indent=2)
    (out / f"{PAGE}.md").write_text(markdown_page("Leaderboard", summary, tables), encoding="utf-8")
    (out / f"{PAGE}.html").write_text(html_page("Leaderboard", summary, tables), encoding="utf-8")
    for one in board["regressions"]:
        print(
            f"lower: {one['second']} on {one['column']}, {difference(one).text()} against {board['against']}"
        )
    for name, scores in board["checkpoints"].items():
        line = ", ".join(f"{column} {Cell(one['score']).text()}" for column, one in scores.items())
        print(f"{name}: {line}")
    print(f"page: {out / f'{PAGE}.html'}")
    return int(args.fail_on_regression and bool(board["regressions"]))
