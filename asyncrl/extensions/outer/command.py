"""`asyncrl serve outer`."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncrl.config import Config
from asyncrl.services.command import Address, need


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.outer.service import serve_outer

    serve_outer(Path(need(args.state, "--state", "outer")), address)
    return 0
