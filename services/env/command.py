"""`asyncrl serve env`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import CONFIGURED, Address, withhold_from_environments

HELP = "sessions of environments"
OPTIONS = (*CONFIGURED, "--join")


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.services.env.service import serve_env

    env = config.env
    withhold_from_environments(env)
    serve_env(
        max_sessions=env.max_sessions,
        lease_s=config.rollout.lease_s,
        processes=env.processes,
        limits=env.limits,
        start_timeout_s=config.run.start_timeout_s,
        envs={env.name: env.config} if args.recipe or args.folder or args.join else None,
        **address._asdict(),
    )
    return 0
