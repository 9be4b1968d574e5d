"""`asyncrl env ...`"""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    # This parser has no options, so that --help reaches the command's own parser.
    parser = subparsers.add_parser(
        "env", help="list environments, write one, check them, play one", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.env.registry import ELSEWHERE
    from asyncrl.extensions.env_tools.commands import build_parser, main

    if args.arguments[:1] == ["check"] and not ELSEWHERE.keys().isdisjoint(args.arguments):
        from asyncrl.rollout.elsewhere import played_elsewhere

        parsed = build_parser().parse_args(args.arguments)
        if len(parsed.names) == 1 and (elsewhere := played_elsewhere(parsed.names[0])) is not None:
            return elsewhere.check_environment(parsed)
    return main(args.arguments)
