"""`asyncrl sandbox ...`"""

from __future__ import annotations

import argparse
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sandbox", help="check what the sandbox keeps in: asyncrl sandbox check", add_help=False
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.env.sandbox.check import main

    return main(args.arguments)
