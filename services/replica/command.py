"""`asyncrl serve replica`."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncrl.config import Config
from asyncrl.services.command import CONFIGURED, Address

HELP = "the second place of a ledger whose buffer is on another machine"
OPTIONS = CONFIGURED


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.buffer.replica import FOLDER
    from asyncrl.services.replica.service import serve_replica

    serve_replica((args.folder or Path()) / FOLDER, **address._asdict())
    return 0
