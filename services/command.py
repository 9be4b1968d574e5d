"""What the roles' commands share: `asyncrl serve ROLE` finds one in each role's `command.py`.

Such a module says what the role is (`HELP`) and which options it takes (`OPTIONS`), and starts it (`start`). It imports
the service only then: the console command is fast, and light processes load no torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asyncrl.config import Config
from asyncrl.config_sections import EnvConfig
from asyncrl.credentials import Credentials
from asyncrl.errors import ConfigError
from asyncrl.process_hooks import texts, withhold_secrets

STOPPED = 3
"""Exit code of a process that starting again would not help: it ended on purpose, or a disk takes nothing more."""
MISCONFIGURED = 2
"""Exit code of a process that refuses its configuration, or could not have its address."""
ADDRESS = ("--host", "--port", "--ready-file", "--token-file")
CONFIGURED = ("--folder", "--recipe", *ADDRESS)
SIMULATOR_KEY = "ASYNCRL_SIMULATOR_KEY"
"""The one secret that an environment of ours asks for by name."""


class Address(NamedTuple):
    """Where a process serves, whom it tells, and who may call it. `port` 0 takes a free one."""

    host: str
    port: int
    credentials: Credentials
    ready_file: str | Path | None


class RoleCommand(Protocol):
    """A role's `command.py`."""

    @property
    def HELP(self) -> str: ...

    @property
    def OPTIONS(self) -> tuple[str, ...]: ...

    def start(self, args: argparse.Namespace, config: Config, address: Address) -> int:
        """Run the process to its end; return its exit code."""
        ...


def need(value: Any, option: str, role: str) -> Any:
    """Return a value that the role cannot do without. Raises `ConfigError`."""
    if not value:
        raise ConfigError(f"serve {role}: needs {option}")
    return value


def withhold_from_environments(env: EnvConfig) -> None:
    """Leave environments, and what they start, only the secrets that the recipe names."""
    withhold_secrets({SIMULATOR_KEY, *env.secrets, *texts(env.config)})
