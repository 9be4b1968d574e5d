"""`asyncrl serve openenv`."""

from __future__ import annotations

import argparse
import os

from asyncrl.config import Config
from asyncrl.credentials import VARIABLE
from asyncrl.errors import ConfigError
from asyncrl.services.command import Address, withhold_from_environments


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.extensions.openenv.service import serve_openenv

    # Code of the environment, which this process runs, must not find it.
    os.environ.pop(VARIABLE, None)
    withhold_from_environments(config.env)
    configured = bool(args.recipe or args.folder)
    names = args.env or ([config.env.name] if configured else [])
    if len(names) != 1:
        raise ConfigError("serve openenv: needs --env NAME, or --recipe")
    settings = config.env.config if configured and names[0] == config.env.name else {}
    serve_openenv(names[0], settings, max_sessions=config.env.max_sessions, **address._asdict())
    return 0
