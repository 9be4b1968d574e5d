"""`asyncrl serve swarm`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import ADDRESS, Address, need

HELP = "rollouts that several runs share"
OPTIONS = ("--state", "--advertise", *ADDRESS)


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.services.swarm.service import serve_swarm

    serve_swarm(need(args.state, "--state", "swarm"), **address._asdict())
    return 0
