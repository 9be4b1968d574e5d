"""`asyncrl serve replica`."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncrl.config import Config
from asyncrl.services.command import Address


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.replica.replica import FOLDER
    from asyncrl.extensions.replica.service import serve_replica

    serve_replica((args.folder or Path()) / FOLDER, address)
    return 0
