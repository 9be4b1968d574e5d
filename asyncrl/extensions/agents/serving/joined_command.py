"""`asyncrl serve gateway --join`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from asyncrl.config import Config
from asyncrl.credentials import own_token, user_folder
from asyncrl.errors import ConfigError
from asyncrl.services.command import Address, need

TOKEN_FILE = "gateway-token"
"""In the user's folder, without `--agent-token-file`."""


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """Take the place of the role's own `start` where it joins."""
    from asyncrl.chat.renderer import import_tokenizers_only
    from asyncrl.chat.tool_formats import needs_library
    from asyncrl.extensions.agents.serving.joined_service import serve_joined_gateway
    from asyncrl.extensions.agents.tasks import AGENT

    if config.env.name != AGENT:
        raise ConfigError(
            f"serve gateway --join: this run's episodes are played by the environment {config.env.name!r}; agents "
            f"play those of a run with env.name={AGENT!r} (docs/gateway.md)"
        )
    path = Path(args.agent_token_file) if args.agent_token_file else user_folder() / TOKEN_FILE
    callers = own_token(path)
    print(f"asyncrl: those who ask for episodes need the token in {path}", file=sys.stderr)
    if not needs_library(config.model.tool_format, config.model.reasoning_format):
        import_tokenizers_only()
    serve_joined_gateway(
        config,
        need(args.model, "--model", "gateway"),
        need(args.engines, "--engines", "gateway"),
        args.buffer,
        callers,
        **address._asdict(),
    )
    return 0
