"""`asyncrl leaderboard FOLDER`"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError

PAGE = "leaderboard"


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
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
    parser.add_argument(
        "--price",
        action="append",
        default=[],
        metavar="[CHECKPOINT=]READ,SAMPLED",
        help="what a million tokens cost that a checkpoint reads and samples: draws success against cost, too, where "
        "evaluations differ in their budget of thinking; may be repeated",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.folder.is_dir():
        raise ConfigError(f"leaderboard: there is no folder {args.folder}")
    board = write_leaderboard(args.folder, args.out or args.folder, args.against, args.price)
    return int(args.fail_on_regression and bool(board["regressions"]))


def write_leaderboard(folder: Path, out: Path, against: str, prices: Sequence[str]) -> dict[str, Any]:
    """Write the page of all evaluations in a folder, print its scores, and return what `leaderboard` does.

    prices: as `parse_prices` reads them. Raises `ConfigError`.
    """
    from asyncrl.extensions.benchmarks.budget_curve import budget_figures, parse_prices
    from asyncrl.extensions.benchmarks.leaderboard import (
        evaluated,
        leaderboard,
        leaderboard_tables,
        read_columns,
    )
    from asyncrl.extensions.benchmarks.tables import Cell, difference, html_page, markdown_page
    from asyncrl.jsonfile import write_json

    columns = read_columns(folder)
    board = leaderboard(columns, against, parse_prices(prices, evaluated(columns)))
    if prices and not board["budgets"]:
        raise ConfigError(
            f"--price: {folder} holds no evaluations that differ in their budget of thinking alone"
        )
    tables = leaderboard_tables(board)
    summary = f"Checkpoints: {len(board['checkpoints'])}. Suites and data sets: {len(board['columns'])}."
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / f"{PAGE}.json", board, indent=2)
    (out / f"{PAGE}.md").write_text(markdown_page("Leaderboard", summary, tables), encoding="utf-8")
    page = html_page("Leaderboard", summary, tables, budget_figures(board["budgets"]))
    (out / f"{PAGE}.html").write_text(page, encoding="utf-8")
    for one in board["regressions"]:
        print(
            f"lower: {one['second']} on {one['column']}, {difference(one).text()} against {board['against']}"
        )
    for name, scores in board["checkpoints"].items():
        line = ", ".join(f"{column} {Cell(one['score']).text()}" for column, one in scores.items())
        print(f"{name}: {line}")
    print(f"page: {out / f'{PAGE}.html'}")
    return board
