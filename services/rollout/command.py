"""`asyncrl serve rollout`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.services.command import CONFIGURED, Address, need

HELP = "a worker that plays groups of episodes; without --buffer it runs tasks on request"
OPTIONS = (
    *CONFIGURED, "--join", "--model", "--engines", "--env", "--buffer", "--name", "--policy", "--beside",
)  # fmt: skip


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.chat.renderer import import_tokenizers_only
    from asyncrl.chat.tool_formats import needs_library
    from asyncrl.env.config_check import env_services
    from asyncrl.env.registry import ELSEWHERE
    from asyncrl.services.joining import read_policy
    from asyncrl.services.rollout.service import PolicyAddresses, serve_rollout

    own_code = config.env.name in ELSEWHERE
    if not own_code and not needs_library(config.model.tool_format, config.model.reasoning_format):
        # What plays elsewhere may be code of the user's in this process, which may load a model of its own.
        import_tokenizers_only()
    policies = {}
    for policy in args.policy:
        name, buffer, engines = read_policy(policy)
        policies[name] = PolicyAddresses(engines, buffer)
    envs = need(args.env, "--env", "rollout") if env_services(config) else args.env or ()
    serve_rollout(
        config,
        need(args.model, "--model", "rollout"),
        need(args.engines, "--engines", "rollout"),
        envs,
        buffer=args.buffer,
        name=args.name,
        policies=policies,
        beside=dict(one.partition("=")[::2] for one in args.beside),
        **address._asdict(),
    )
    return 0
