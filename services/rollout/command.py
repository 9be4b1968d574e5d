"""`asyncrl serve rollout`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import CONFIGURED, Address, need

HELP = "a worker that plays groups of episodes; without --buffer it runs tasks on request"
OPTIONS = (*CONFIGURED, "--join", "--model", "--engines", "--env", "--buffer", "--name", "--policy")


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.services.joining import read_policy
    from asyncrl.services.rollout.service import PolicyAddresses, serve_rollout

    policies = {}
    for policy in args.policy:
        name, buffer, engines = read_policy(policy)
        policies[name] = PolicyAddresses(engines, buffer)
    serve_rollout(
        config,
        need(args.model, "--model", "rollout"),
        need(args.engines, "--engines", "rollout"),
        need(args.env, "--env", "rollout"),
        buffer=args.buffer,
        name=args.name,
        policies=policies,
        **address._asdict(),
    )
    return 0
