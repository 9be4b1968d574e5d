"""`asyncrl serve node`."""

from __future__ import annotations

import argparse
import socket
import sys

from asyncrl.config import Config
from asyncrl.errors import ConfigError, ConflictError, StopError
from asyncrl.extensions.machines.messages import NODE_ROLES
from asyncrl.services.command import STOPPED, Address, need


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.machines.service import serve_node

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
