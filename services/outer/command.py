"""`asyncrl serve outer`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import ADDRESS, Address, need

HELP = "the outer optimizer of several runs that train one policy together"
OPTIONS = ("--state", "--advertise", *ADDRESS)


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.services.outer.service import serve_outer

    serve_outer(need(args.state, "--state", "outer"), **address._asdict())
    return 0
