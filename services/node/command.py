"""`asyncrl serve node`."""

from __future__ import annotations

import argparse
import socket
import sys

from asyncrl.config import Config
from asyncrl.errors import ConfigError, ConflictError, StopError
from asyncrl.services.command import ADDRESS, STOPPED, Address, need
from asyncrl.services.node.messages import NODE_ROLES

HELP = "this machine as a node of a run: it starts the processes that the launcher asks for"
OPTIONS = ("--launcher", "--name", "--roles", "--advertise", *ADDRESS)


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.services.node.service import serve_node

    launcher = need(args.launcher, "--launcher", "node").rstrip("/")
    roles = args.roles.split(",") if args.roles else list(NODE_ROLES)
    if unknown := [role for role in roles if role not in NODE_ROLES]:
        raise ConfigError(f"--roles: {unknown[0]!r} does not run on nodes; allowed: {', '.join(NODE_ROLES)}")
    if not address.credentials.run_token:
        raise ConfigError(
            "serve node: needs the run's token itself, in ASYNCRL_TOKEN or --token-file runs/NAME/token"
        )
    try:
        serve_node(launcher, args.name or socket.gethostname(), roles, **address._asdict())
    except (ConflictError, StopError) as error:
        print(f"asyncrl: {error}", file=sys.stderr)
        return STOPPED
    return 0
