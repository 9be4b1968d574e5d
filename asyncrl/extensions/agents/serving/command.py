"""`asyncrl serve gateway`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.services.command import Address, need


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `services.command.RoleCommand`."""
    from asyncrl.chat.renderer import import_tokenizers_only
    from asyncrl.chat.tool_formats import needs_library
    from asyncrl.extensions.agents.serving.service import serve_gateway

    if args.agent_token_file:
        raise ConfigError(
            "--agent-token-file: is for --join; those who call a gateway on its own have the token of --token-file"
        )
    if not needs_library(config.model.tool_format, config.model.reasoning_format):
        import_tokenizers_only()
    model = need(args.model, "--model", "gateway")
    serve_gateway(config, model, need(args.engines, "--engines", "gateway"), **address._asdict())
    return 0
