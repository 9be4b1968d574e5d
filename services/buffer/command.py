"""`asyncrl serve buffer`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.services.command import CONFIGURED, Address

HELP = "the ledger of tasks, groups and steps"
OPTIONS = (*CONFIGURED, "--base-version", "--model", "--replica")


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.buffer.hooks.configured import hooks_of
    from asyncrl.buffer.ledger import LedgerSettings
    from asyncrl.credentials import own_credentials
    from asyncrl.run.model_folder import vocab_size
    from asyncrl.services.buffer.service import serve_buffer
    from asyncrl.services.replica.client import follower_of

    ledger = args.folder / "ledger.sqlite" if args.folder else Path("ledger.sqlite")
    settings = LedgerSettings.of(config, vocab_size(args.model) if args.model else 0)
    hooks = hooks_of(config)
    where = args.replica or config.buffer.replica
    follower = follower_of(where, ledger, own_credentials().bearer("buffer")) if where else None
    served: dict[str, Any] = {"hooks": hooks, "follower": follower, **address._asdict()}
    serve_buffer(str(ledger), settings, args.base_version, **served)
    return 0
