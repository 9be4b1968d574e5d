"""The seam for runs over several machines: a word of `--on`, the machines of a run, and files to submit it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from asyncrl.extensions.table import rows

if TYPE_CHECKING:
    from asyncrl.config import Config
    from asyncrl.credentials import Credentials
    from asyncrl.hosts.host import Host
    from asyncrl.hosts.local import LocalHost
    from asyncrl.launch.machines.placement import Placement
    from asyncrl.launch.processes.process_group import Placed
    from asyncrl.launch.processes.supervise import Supervisor
    from asyncrl.launch.roles.policy_roles import PolicyRoles


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


def cluster_request(config: Config, name: str, nodes: int, gpus: int = 0) -> Request:
    """Return what a run asks of a cluster, with what extensions know of its sizes."""
    request = Request(name, nodes, gpus)
    for row in rows("cluster_requests"):
        request = row.load()(config, request)
    return request


class ClusterMonitor(Protocol):
    """Looks after the machines of a run while it trains."""

    def tick(self) -> str:
        """Look, and act; return what to tell the user, if anything."""


class Cluster(Protocol):
    """The machines of one run, from when they are waited for until the run is over. Use as a context manager."""

    credentials: Credentials
    """The run's."""
    url: str
    """Where the machines register, once it is entered."""

    @property
    def awaited(self) -> str:
        """What is waited for, and what the user has to do for it."""

    def gather(self, model: str, policies: Mapping[str, str]) -> None:
        """Wait until all machines have the run, and decide where its processes go. policies: the models of the further
        policies. Raises `AsyncRLError`."""

    @property
    def placement(self) -> Placement:
        """What the processes are told of their GPUs."""

    @property
    def local(self) -> LocalHost:
        """This machine, whose services others can reach."""

    def hosts(self) -> Mapping[str, Host]:
        """Return where the processes run that do not run on this machine, by name."""

    def elsewhere(self, name: str) -> Placed | None:
        """Return where a process goes whose machine was lost, None where no other one has room."""

    def room(self, name: str) -> Placed | None:
        """Return where a process goes that is started while the run goes on, None where no machine has room."""

    def leave(self, name: str) -> None:
        """Free the place of a process that has left the run."""

    def monitors(self, policies: Sequence[PolicyRoles], supervisor: Supervisor) -> Sequence[ClusterMonitor]:
        """Return what looks after the machines. policies: all of the run's."""

    def __enter__(self) -> Cluster: ...

    def __exit__(self, *_: Any) -> None: ...


class FurtherMachines(Protocol):
    """Which machines a run is to have beside this one."""

    def cluster(self, config: Config, folder: Path) -> Cluster:
        """Return the machines of one run, whose folder is given. Raises `ConfigError`."""


class ClusterKind:
    """A kind of cluster. args: those of the command."""

    renders = False
    """Whether files are written for it (`--render`)."""

    def add_options(self, machines: argparse._ArgumentGroup) -> None:
        """Add options of its own to `asyncrl train`."""

    def machines(self, args: argparse.Namespace, config: Config) -> FurtherMachines | None:
        """Return the further machines of a run; None where it has none. Raises `ConfigError`."""
        raise NotImplementedError

    def render(self, args: argparse.Namespace, config: Config, request: Request) -> dict[str, str]:
        """Return the files that a run is submitted with, by name. Raises `ConfigError`, also where it does not fit."""
        raise NotImplementedError

    def submission(self, folder: Path, request: Request) -> str:
        """Return the command that submits them from a folder."""
        raise NotImplementedError

    def asks(self, args: argparse.Namespace, config: Config, request: Request) -> list[str]:
        """Return what runs on which machine and what the files ask for, in lines for the user. None of them where
        another kind says it. Raises `ConfigError`."""
        return []


def cluster_kinds() -> dict[str, ClusterKind]:
    """Return all kinds by their words."""
    return {row.name: row.load()() for row in rows("cluster_kinds")}
