"""`asyncrl serve old_policy`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import Address, need


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.old_policy.service import serve_old_policy

    serve_old_policy(
        config,
        need(args.model, "--model", "old_policy"),
        need(args.buffer, "--buffer", "old_policy"),
        need(args.weights_dir, "--weights-dir", "old_policy"),
        address,
    )
    return 0
