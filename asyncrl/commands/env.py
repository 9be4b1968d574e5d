"""`asyncrl env ...`"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers
    from asyncrl.env.check import Finding

AGENT = "agent"
"""The environment whose check plays a real program."""


def add(subparsers: Subparsers) -> None:
    # This parser has no options, so that --help reaches the command's own parser.
    parser = subparsers.add_parser(
        "env", help="list environments, write one, check them, play one", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.env.commands import build_parser, main

    if args.arguments[:1] == ["check"] and AGENT in args.arguments:
        parsed = build_parser().parse_args(args.arguments)
        if parsed.names == [AGENT]:
            return check_agent(parsed)
    return main(args.arguments)


def check_agent(args: argparse.Namespace) -> int:
    """Check a harness's program; return the command's exit code."""
    from asyncrl.console import shown
    from asyncrl.launch.evaluation.agent_check import SLOW_S, check_agent_program

    def tell(finding: Finding) -> None:
        print(shown(f"  {'ok' if finding.ok else 'FAILED':8s}{finding.name}: {finding.seen}"), flush=True)

    print(f"{AGENT}: {args.config.get('harness', '')}", flush=True)
    slow_s = SLOW_S if args.slow_turn_s is None else args.slow_turn_s
    findings = check_agent_program(args.config, tell, slow_s)
    return int(not all(finding.ok for finding in findings))
