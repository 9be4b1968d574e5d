"""`asyncrl sandbox check [option ...]`"""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser("sandbox", help="check what the sandbox contains: asyncrl sandbox check")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    # This parser has no options, so that --help reaches the check's own parser.
    check = commands.add_parser(
        "check", help="run attacks against the sandbox", add_help=False, prefix_chars="\0"
    )
    check.add_argument("arguments", nargs=argparse.REMAINDER)
    check.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.extensions.sandbox_attacks.check import main

    return main(args.arguments)
