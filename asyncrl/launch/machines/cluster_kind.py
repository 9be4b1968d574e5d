"""The seam for clusters: a word of `asyncrl train --on`, and the files with which a run is submitted to one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncrl.extensions.table import rows

if TYPE_CHECKING:
    from asyncrl.config import Config
    from asyncrl.launch.machines.spread import ClusterOptions


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a cluster. `nodes`: machines in all, the head's among them; `gpus`: of each; `name`: of the run;
    `image`: a container image with asyncrl, where the run is in containers; `memory_gib`: of each machine, and
    `storage_gib`: of the run's folder, as the recipe needs them."""

    name: str
    nodes: int
    gpus: int = 0
    image: str = ""
    memory_gib: int = 64
    storage_gib: int = 100


@dataclass(frozen=True, slots=True)
class Launcher:
    """What nodes are started for."""

    config: Config
    url: str
    """Where they register."""
    token: str
    logs: Path
    """The run's folder of logs, which may not be there yet."""


class NodeStarter(Protocol):
    """Starts the nodes of a run, and ends them."""

    def start(self) -> None:
        """Begin to start them. Raises `ConfigError`, `DeadlineError`."""

    def close(self) -> None:
        """End them, which have been told that the run is over."""


class ClusterKind:
    """A kind of cluster. args: those of the command."""

    renders = False
    """Whether files are written for it (`--render`)."""

    def add_options(self, machines: argparse._ArgumentGroup) -> None:
        """Add options of its own to `asyncrl train`."""

    def machines(self, args: argparse.Namespace, config: Config) -> ClusterOptions | None:
        """Return the further machines of a run; None where it has none. Raises `ConfigError`."""
        raise NotImplementedError

    def render(self, args: argparse.Namespace, config: Config, request: Request) -> dict[str, str]:
        """Return the files that a run is submitted with, by name. Raises `ConfigError`."""
        raise NotImplementedError

    def submission(self, folder: Path, request: Request) -> str:
        """Return the command that submits them from a folder."""
        raise NotImplementedError

    def asks(self, args: argparse.Namespace, config: Config, request: Request) -> list[str]:
        """Return what they ask the cluster for, in lines for the user; none where the files say it best."""
        return []


def cluster_kinds() -> dict[str, ClusterKind]:
    """Return all kinds by their words."""
    return {row.name: row.load()() for row in rows("cluster_kinds")}
