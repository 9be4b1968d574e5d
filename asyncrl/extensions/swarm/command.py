"""`asyncrl serve swarm`."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncrl.config import Config
from asyncrl.services.command import Address, need


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.swarm.service import serve_swarm

    serve_swarm(Path(need(args.state, "--state", "swarm")), address)
    return 0
