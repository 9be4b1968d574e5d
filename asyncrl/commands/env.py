"""`asyncrl env ...`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers


def add(subparsers: Subparsers) -> None:
    # This parser has no options, so that --help reaches the command's own parser.
    parser = subparsers.add_parser(
        "env", help="list environments, write one, check them, play one", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.env.commands import main

    return main(args.arguments)
