"""`asyncrl serve buffer`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.config import Config
from asyncrl.extensions.table import rows, value_at
from asyncrl.services.command import CONFIGURED, Address

if TYPE_CHECKING:
    from asyncrl.services.buffer.service import BufferFollower

HELP = "the ledger of tasks, groups and steps"
OPTIONS = (*CONFIGURED, "--base-version", "--model", *(f"--{row.name}" for row in rows("ledger_followers")))


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.buffer.hooks.configured import hooks_of
    from asyncrl.buffer.ledger import LedgerSettings
    from asyncrl.buffer.store import LEDGER
    from asyncrl.run.model_folder import vocab_size
    from asyncrl.services.buffer.service import serve_buffer

    ledger = (args.folder or Path()) / LEDGER
    settings = LedgerSettings.of(config, vocab_size(args.model) if args.model else 0)
    hooks = hooks_of(config)
    follower = _follower(args, config, ledger)
    served: dict[str, Any] = {"hooks": hooks, "follower": follower, **address._asdict()}
    serve_buffer(str(ledger), settings, args.base_version, **served)
    return 0


def _follower(args: argparse.Namespace, config: Config, ledger: Path) -> BufferFollower | None:
    """Return what follows the ledger, where the option or the key of a follower's name says where it is."""
    from asyncrl.credentials import own_credentials

    for row in rows("ledger_followers"):
        if where := getattr(args, row.name) or value_at(config, f"buffer.{row.name}"):
            found: BufferFollower = row.load()(where, ledger, own_credentials().bearer("buffer"))
            return found
    return None
