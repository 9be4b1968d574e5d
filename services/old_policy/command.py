"""`asyncrl serve old_policy`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import CONFIGURED, Address, need

HELP = "a model that scores sampled tokens under the versions that sampled them, for a trainer"
OPTIONS = (*CONFIGURED, "--model", "--buffer", "--weights-dir")


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.services.old_policy.service import serve_old_policy

    serve_old_policy(
        config,
        need(args.model, "--model", "old_policy"),
        need(args.buffer, "--buffer", "old_policy"),
        need(args.weights_dir, "--weights-dir", "old_policy"),
        **address._asdict(),
    )
    return 0
