"""The machines of a run beside this one: they register here, fetch the run, and are asked to start its processes."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from asyncrl.config import Config
from asyncrl.credentials import RUN_FILE, Credentials, run_credentials
from asyncrl.endpoint import EVERY_INTERFACE, advertised_host
from asyncrl.errors import ConfigError, DeadlineError, UnavailableError
from asyncrl.extensions.machines.full_trainer import FullTrainer
from asyncrl.extensions.machines.messages import NODE_ROLES, Register
from asyncrl.extensions.machines.node_host import LinkThread, NodeHost
from asyncrl.extensions.machines.registry import Registry, create_registry_app
from asyncrl.extensions.machines.room import check_rooms
from asyncrl.extensions.machines.spread import (
    TRAINER,
    ClusterOptions,
    Launcher,
    Machine,
    NodeStarter,
    Place,
    Spread,
    SpreadPlacement,
    engine_section,
    on_nodes,
    relocated,
    spread,
    train_section,
    with_all,
    with_room,
    without,
)
from asyncrl.extensions.machines.spread_host import SpreadHost
from asyncrl.gpus import found_gpus
from asyncrl.hosts.host import Host
from asyncrl.hosts.local import LocalHost
from asyncrl.launch.processes.process_group import Placed
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.launch.roles.policy_roles import PolicyRoles
from asyncrl.services.http.app import serve
from asyncrl.startup import KEY, LIMIT_FACTOR
from asyncrl.types import MAIN_POLICY

log = logging.getLogger("asyncrl")

HEAD = "head"
TICK_S = 0.1
START_S = 30.0


class NodeCluster:
    """Implements `Cluster` by nodes."""

    def __init__(self, options: ClusterOptions, config: Config, folder: Path) -> None:
        self.options, self.config, self.folder = options, config, folder
        self.bound = options.host or advertised_host(EVERY_INTERFACE[0], options.advertise)
        self.address = advertised_host(self.bound, options.advertise)
        self.credentials: Credentials = run_credentials(folder)
        if not self.credentials.run_token:
            raise ConfigError("ASYNCRL_TOKEN: must be a run's token itself where a run has several machines")
        self.registry = Registry()
        self.url = ""
        self._app: FastAPI = create_registry_app(self.registry, self.credentials.access("node"))
        self._server = threading.Thread(target=self._serve, name="registry", daemon=True)
        self._serving, self._failure = threading.Event(), ""
        self._link = LinkThread()
        self._hosts: dict[str, NodeHost] = {}
        self._starter: NodeStarter | None = None
        self._spread: Spread
        self._over_machines: dict[str, SpreadHost] = {}
        """The hosts of processes that have parts on several machines, by name."""

    def _serve(self) -> None:
        try:
            serve(self._app, self.bound, self.options.port, serving=self._served, advertise=self.address)
        except ConfigError as error:
            self._failure = str(error)
            self._serving.set()

    def _served(self, url: str) -> None:
        self.url = url
        self._serving.set()

    def open(self) -> None:
        """Serve at `url`, where nodes register. Raises `ConfigError`, `DeadlineError`."""
        self._server.start()
        if not self._serving.wait(START_S):
            raise DeadlineError(f"the launcher's service for nodes did not start within {START_S:g} s")
        if self._failure:
            raise ConfigError(f"{self._failure}; choose another with --port, or another address with --host")
        if self.options.starter is not None:
            launcher = Launcher(self.config, self.url, self.credentials.text, self.folder / "logs")
            self._starter = self.options.starter(launcher)
            self._starter.start()

    def gather(self, model: str, policies: Mapping[str, str]) -> None:
        """Wait until all nodes have the run, and decide where its processes go. Raises `DeadlineError`, `ConfigError`,
        and `UnavailableError` where two machines cannot reach each other.

        policies: the models of the further policies.
        """
        further = {
            name: (self.config.policy(name).model_dump(mode="json"), one)
            for name, one in policies.items()
            if on_nodes(self.config, name)
        }
        # Another name for each launch: settings may have changed.
        name = f"run-{secrets.token_hex(4)}"
        self.registry.offer(name, self.config.model_dump(mode="json"), model, further)
        limit_s = LIMIT_FACTOR * self.config.run.start_timeout_s
        deadline = time.monotonic() + limit_s
        while len(ready := [node for node in self.registry.nodes() if node.run]) < self.options.nodes:
            if time.monotonic() > deadline:
                known = ", ".join(node.name for node in self.registry.nodes()) or "none"
                raise DeadlineError(
                    f"{len(ready)} of {self.options.nodes} nodes were ready within {LIMIT_FACTOR} times {KEY}="
                    f"{self.config.run.start_timeout_s:g} s (registered: {known}); start the others: "
                    f"{self.join_command}"
                )
            time.sleep(TICK_S)
        self._hosts = {node.name: self._node_host(node.name) for node in ready}
        self._check_routes()
        self._spread = spread(self.config, self._head, [_machine(node) for node in ready])
        check_rooms(self.config, self._spread, ready, {MAIN_POLICY: model, **policies})

    @property
    def awaited(self) -> str:
        """See `Cluster`."""
        how = "" if self.options.comes_by_itself else f"; on each run: {self.join_command}"
        return f"{self.options.nodes} nodes{how}"

    @property
    def join_command(self) -> str:
        """What is to be run on a machine for it to join."""
        return f"asyncrl serve node --launcher {self.url} --token-file {self.folder / RUN_FILE}"

    @property
    def placement(self) -> SpreadPlacement:
        """What the processes are told of their GPUs."""
        return SpreadPlacement(found_gpus(), spread=self._spread, head=HEAD)

    @property
    def local(self) -> LocalHost:
        """This machine, whose services others can reach."""
        advertised = ["--advertise", self.address] if self.address != self.bound else []
        return LocalHost(["--host", self.bound, *advertised], self.address)

    @property
    def _head(self) -> Machine:
        return Machine(HEAD, len(found_gpus()), frozenset(NODE_ROLES))

    def hosts(self) -> Mapping[str, Host]:
        """Return where the processes run that do not run on this machine, by name."""
        found: dict[str, Host] = {}
        for name in (TRAINER, *self._spread.processes):
            host, _ = self._placed(name)
            if not isinstance(host, LocalHost):
                found[name] = host
        return found

    def elsewhere(self, name: str) -> Placed | None:
        """Return where a process goes whose machine was lost, None where no other one has room. Nodes that have joined
        since the start count, too. Without one for each of its machines the trainer goes on with fewer."""
        moved = relocated(self._spread, name, self.config, self._head, self._usable_nodes())
        if moved is None:
            return None
        self._spread = moved
        train = train_section(self.config, name)
        if train is not None and len(moved.parts(name)) < train.num_machines:
            log.warning("%s: goes on with %s", name, self.said_trainer(name))
        return self._placed(name)

    def said_trainer(self, name: str) -> str:
        """With how many of its ranks and machines a trainer works."""
        train, machines = train_section(self.config, name), len(self._spread.parts(name))
        assert train is not None
        ranks = train.ranks_each * machines
        return f"{ranks} of {train.ranks} ranks, on {machines} of {train.num_machines} machines"

    def trainer_room(self, name: str) -> Spread | None:
        """Return the places of all ranks where a trainer has gone on with fewer, and there is room for the others."""
        return with_all(self._spread, name, self.config, self._head, self._usable_nodes())

    def monitors(self, policies: Sequence[PolicyRoles], supervisor: Supervisor) -> list[FullTrainer]:
        """See `Cluster`. What brings trainers over several machines back to all of them."""
        over_machines = [roles for roles in policies if roles.config.train.num_machines > 1]
        return [FullTrainer(self, roles, supervisor) for roles in over_machines]

    def use(self, found: Spread, name: str) -> Placed:
        """Have a trainer start at the places of `trainer_room` from now on."""
        self._spread = found
        return self._placed(name)

    def room(self, name: str) -> Placed | None:
        """Return where a process goes that is started while the run goes on, None where no machine has room. Nodes that
        have joined since the start count, too."""
        nodes = self._usable_nodes()
        with_gpus = any(machine.gpus for machine in (self._head, *nodes))
        engine = engine_section(self.config, name)
        gpus = engine.ranks_each if engine is not None and with_gpus else 0
        found = with_room(self._spread, name, gpus, self._head, nodes, engine.num_machines if engine else 1)
        if found is None:
            return None
        self._spread = found
        return self._placed(name)

    def leave(self, name: str) -> None:
        """Free the place of a process that has left the run."""
        self._spread = without(self._spread, name)
        self._over_machines.pop(name, None)

    def _placed(self, name: str) -> Placed:
        """Return the host of a process, and the variables that show its GPUs there; those of parts are their host's."""
        parts, train = self._spread.parts(name), train_section(self.config, name)
        over_machines = len(parts) > 1 or (train is not None and train.num_machines > 1)
        if not over_machines:
            return self._host(parts[0]), self.placement.env_of(parts[0])
        host = self._over_machines.setdefault(name, SpreadHost())
        host.put([(self._host(part), part.machine, self.placement.env_of(part)) for part in parts])
        return host, {}

    def _host(self, place: Place) -> Host:
        return self.local if place.machine == HEAD else self._hosts[place.machine]

    def _usable_nodes(self) -> list[Machine]:
        return [_machine(node) for node in self.registry.nodes() if self._usable(node)]

    def _usable(self, node: Register) -> bool:
        """True for a node that has the run and answers."""
        if self.registry.run is None or node.run != self.registry.run.run:
            return False
        if node.name not in self._hosts:
            self._hosts[node.name] = self._node_host(node.name)
        return not self._hosts[node.name].problem()

    def _node_host(self, name: str) -> NodeHost:
        silence_s = self.config.run.silence_timeout_s
        return NodeHost(
            name, self.registry, self._link, self.credentials.bearer("node"), self.folder, silence_s
        )

    def _check_routes(self) -> None:
        """Raise `UnavailableError` for the first two machines of which one cannot reach the other."""
        urls = {HEAD: self.url} | {name: host.url for name, host in self._hosts.items()}
        for name, host in self._hosts.items():
            missed = host.unreachable([url for other, url in urls.items() if other != name])
            for url, why in missed.items():
                other = next(one for one, known in urls.items() if known == url)
                raise UnavailableError(
                    f"node {name} cannot reach {other} at {url}: {why}; open the network between them, or start "
                    f"{other} with --advertise and an address that {name} reaches ({urlsplit(url).hostname} is not one)"
                )

    def close(self) -> None:
        """Tell the nodes that the run is over, and end the service."""
        for host in self._hosts.values():
            host.close()
        if self._starter is not None:
            self._starter.close()
        if self.url:
            self._app.state.request_exit()
        self._link.close()
        if self._server.is_alive():
            self._server.join(START_S)

    def __enter__(self) -> NodeCluster:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _machine(node: Register) -> Machine:
    return Machine(node.name, node.gpus, frozenset(node.roles))
