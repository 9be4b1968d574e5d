"""`asyncrl completion bash|zsh|fish`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

SHELLS = ("bash", "zsh", "fish")


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes commands in a shell",
        description="Print a script that completes commands, options and their choices. bash: "
        'eval "$(asyncrl completion bash)". zsh: put it into a folder of $fpath as _asyncrl. fish: put it into '
        "~/.config/fish/completions/asyncrl.fish.",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell it is for")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(args.build_parser(), shell=args.shell))
    return 0
