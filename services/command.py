"""What the roles' commands share: `asyncrl serve ROLE` finds one in each role's `command.py`, or in an extension's row.

Such a module describes the role (`HELP`), names its options (`OPTIONS`) and starts it (`start`). Only `start` imports
the service, so that the console command is fast and light processes load no torch.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asyncrl.config import Config
from asyncrl.config_sections import EnvConfig
from asyncrl.credentials import Credentials
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import Row, rows
from asyncrl.import_path import load_object
from asyncrl.process_hooks import texts, withhold_secrets

if TYPE_CHECKING:
    from fastapi import FastAPI

STOPPED = 3
"""Exit code of a process that ended on purpose. `asyncrl.disk` has those of processes that ran out of something."""
MISCONFIGURED = 2
"""Exit code of a process that refuses its configuration, or whose address is taken."""
ADDRESS = ("--host", "--port", "--ready-file", "--token-file")
NODES = ("--nodes", "--node-rank", "--main-address", "--main-port")
"""Options of a process that has parts on several machines."""
CONFIGURED = ("--folder", "--recipe", "--advertise", *ADDRESS)
SIMULATOR_KEY = "ASYNCRL_SIMULATOR_KEY"
"""The one secret that a built-in environment reads."""


class Address(NamedTuple):
    """Where a process serves, where it announces that, and who may call it. `port` 0 takes a free one; `advertise` is
    the host that others are told, "" for the one it listens on."""

    host: str
    port: int
    credentials: Credentials
    ready_file: str | Path | None
    advertise: str = ""

    def serve(self, app: FastAPI) -> None:
        """Serve an app of `services.http.app` there until stopped."""
        from asyncrl.services.http.serving import serve

        serve(app, self.host, self.port, self.ready_file, advertise=self.advertise)


class RoleCommand(Protocol):
    """A role's `command.py`."""

    @property
    def HELP(self) -> str: ...

    @property
    def OPTIONS(self) -> tuple[str, ...]:
        """Names of options, of `asyncrl.commands.serve.OPTIONS` or its own."""
        ...

    def start(self, args: argparse.Namespace, config: Config, address: Address) -> int:
        """Run the process to its end; return its exit code."""
        ...


@dataclass(frozen=True, slots=True)
class ExtensionRole:
    """Implements `RoleCommand` by a row of `service_roles`, whose module is imported when it is started."""

    row: Row

    @property
    def HELP(self) -> str:
        return self.row.help

    @property
    def OPTIONS(self) -> tuple[str, ...]:
        """Those of its row, and where it listens."""
        return tuple(dict.fromkeys((*self.row.options, *ADDRESS)))

    def start(self, args: argparse.Namespace, config: Config, address: Address) -> int:
        """See `RoleCommand`."""
        row = self.row
        start = load_object(f"extensions.{row.extension}", row.join) if args.join and row.join else row.load()
        code: int = start(args, config, address)
        return code


def with_trainer(config: Config) -> list[Row]:
    """Return the roles of which each trainer of a run has a process for itself."""
    return [row for row in rows("service_roles") if row.with_trainer and row.wanted(config)]


def with_workers(config: Config) -> list[Row]:
    """Return the roles of which a run or an evaluation has one process for all its rollout workers."""
    return [row for row in rows("service_roles") if row.with_workers and row.wanted(config)]


def need(value: Any, option: str, role: str) -> Any:
    """Return a value that the role needs. Raises `ConfigError` without one."""
    if not value:
        raise ConfigError(f"serve {role}: needs {option}")
    return value


def withhold_from_environments(env: EnvConfig) -> None:
    """Leave environments, and what they start, only the secrets that the recipe names."""
    withhold_secrets({SIMULATOR_KEY, *env.secrets, *texts(env.config)})
