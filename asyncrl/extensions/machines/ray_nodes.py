"""Nodes of a run on a Ray cluster: one placement group, and in it one actor for each process of a node.

    bundle      node of the run         what runs there
    head        none                    the trainer's first ranks: their GPUs are taken on the launcher's machine
    others      engine-0, env, ...      an actor that keeps `asyncrl serve node --roles ROLE` running

Ray decides which machine each bundle is on, and starts an actor anew, elsewhere if need be, when its machine is lost.
Everything else is as with any other node: what the launcher and the nodes tell each other goes over HTTP. Ray pickles
what an actor is made of and returns; here that is text and numbers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncrl.config import Config
from asyncrl.credentials import VARIABLE, user_folder
from asyncrl.errors import ConfigError, DeadlineError
from asyncrl.extensions.machines.node_commands import NodeCommands
from asyncrl.extensions.machines.settings import RayConfig
from asyncrl.extensions.machines.spread import engine_sections
from asyncrl.gpus import VARIABLE as VISIBLE
from asyncrl.launch.machines.placement import env_names, prefixed
from asyncrl.process_start import python_module
from asyncrl.startup import KEY
from asyncrl.types import MAIN_POLICY

ADDRESS = "RAY_ADDRESS"
LOCAL = "local"
"""Instead of an address: a cluster of this machine alone, for this run."""
HERE = 0.001
"""Share of a node's own resource `node:ADDRESS` that holds a bundle there."""
CLOSE_S = 10.0
REACH_S = 10.0
_ADVICE = (
    "start Ray here (ray start --head, or --address=HEAD:6379 to join), or leave the address out for a cluster of this "
    "machine alone"
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A node of the run: its name, the role it takes, and what it needs, by Ray's names. The head's has no role."""

    name: str
    role: str
    resources: Mapping[str, float]


def bundles(config: Config, gpus: bool) -> list[Bundle]:
    """Return what a run asks for beside the head, room for what may be added among it. gpus: whether the cluster has
    any. Pure."""
    trains = {name: config.policy(name).train for name in config.policy_names}
    further = {str(role): resources for role, resources in config.section(RayConfig).ray.items()}
    wanted = [
        *(
            (prefixed(policy, f"trainer-{part}"), "trainer", train.ranks_each, train.ranks_each)
            for policy, train in trains.items()
            for part in range(1, train.num_machines)
        ),
        *(
            (prefixed(policy, f"engine-{index}{f'-{part}' if part else ''}"), "engine", 1, engine.ranks_each)
            for policy, engine in engine_sections(config).items()
            for index in range(config.most("engine") if policy == MAIN_POLICY else engine.count)
            for part in range(engine.num_machines)
        ),
        *((name, "env", 1, 0) for name in env_names(config, config.most("env"))),
        *((f"rollout-{index}", "rollout", 1, 0) for index in range(config.most("rollout"))),
    ]
    return [
        Bundle(
            name,
            role,
            {"CPU": float(cpus)}
            | ({"GPU": float(devices)} if gpus and devices else {})
            | further.get(role, {}),
        )
        for name, role, cpus, devices in wanted
    ]


def head_gpus(config: Config) -> int:
    """Return how many GPUs of the launcher's machine the trainers' first ranks need. Pure."""
    return sum(config.policy(name).train.ranks_each for name in config.policy_names)


def count_nodes(config: Config) -> int:
    """Return how many nodes a run on Ray has beside the head."""
    return len(bundles(config, gpus=False))


class NodeActor:
    """Keeps a node running on the machine where Ray has put this actor."""

    def __init__(self, name: str, role: str, launcher: str, token: str) -> None:
        command = [*python_module("asyncrl"), "serve", "node", "--launcher", launcher]
        logs = user_folder() / "nodes"
        logs.mkdir(parents=True, exist_ok=True)
        self._commands = NodeCommands(
            {name: [*command, "--name", name, "--roles", role]}, logs, {VARIABLE: token}
        )
        self._commands.start()

    def close(self) -> None:
        self._commands.close()


def visible_gpus() -> str:
    """Return the GPUs that Ray has given the task that calls this."""
    return os.environ.get(VISIBLE, "")


class RayNodes:
    """The nodes of a run, on the Ray cluster at `address`, that in `RAY_ADDRESS`, or one of this machine alone."""

    def __init__(self, config: Config, address: str, launcher: str, token: str) -> None:
        self.config, self.launcher, self._token = config, launcher, token
        self.address = address or os.environ.get(ADDRESS, LOCAL)
        self._actors: list[Any] = []
        self._group: Any = None

    def start(self) -> None:
        """Have Ray place the nodes. Raises `ConfigError` without Ray, its cluster, or its room in time."""
        ray = _imported()
        _check_reachable(self.address)
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        count = count_nodes(self.config)
        # A cluster of this machine alone has its cores shared as without Ray.
        own = {"num_cpus": count + 1} if self.address == LOCAL else {}
        with _own_signals():
            try:
                ray.init(self.address, log_to_driver=False, include_dashboard=False, **own)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(f"--ray-address {self.address}: {error}; {_ADVICE}") from error
        gpus = ray.cluster_resources().get("GPU", 0) > 0
        wanted = bundles(self.config, gpus)
        head = {f"node:{ray.util.get_node_ip_address()}": HERE}
        if gpus:
            head["GPU"] = float(head_gpus(self.config))
        self._group = placement_group([head, *(dict(one.resources) for one in wanted)], strategy="SPREAD")
        if not self._group.wait(self.config.run.start_timeout_s):
            asked = "; ".join(f"{one.name}: {dict(one.resources)}" for one in wanted)
            free = {name: n for name, n in ray.available_resources().items() if not name.startswith("node:")}
            self.close()
            raise DeadlineError(
                f"Ray did not place the run within {KEY}={self.config.run.start_timeout_s:g} s; it asks for {asked} "
                f"and on this machine for {head}, free are {free}; add machines to the cluster, or ask for less"
            )

        def there(index: int) -> Any:
            return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)

        if gpus:
            asked = ray.remote(visible_gpus)
            here = asked.options(num_cpus=0, num_gpus=head["GPU"], scheduling_strategy=there(0))
            os.environ[VISIBLE] = ray.get(here.remote())
        node = ray.remote(NodeActor)
        for index, one in enumerate(wanted, 1):
            further = {name: n for name, n in one.resources.items() if name not in ("CPU", "GPU")}
            actor = node.options(
                num_cpus=one.resources["CPU"],
                num_gpus=one.resources.get("GPU", 0),
                resources=further,
                max_restarts=-1,
                scheduling_strategy=there(index),
            )
            self._actors.append(actor.remote(one.name, one.role, self.launcher, self._token))

    def close(self) -> None:
        """End the nodes, which have been told that the run is over, and give everything back to Ray."""
        if self._group is None:
            # Ray was not reached; a call would start a cluster.
            return
        ray = _imported()
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            ray.get([actor.close.remote() for actor in self._actors], timeout=CLOSE_S)
        for actor in self._actors:
            ray.kill(actor)
        ray.util.remove_placement_group(self._group)
        self._actors, self._group = [], None
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise `ConfigError` where nothing listens: Ray itself would try for minutes."""
    if address in (LOCAL, "auto"):
        return
    host, _, port = address.rpartition(":")
    try:
        if "/" in address:
            raise ValueError("must be HOST:PORT: the launcher is a part of the cluster")
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--ray-address {address}: {error}; {_ADVICE}") from error


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--on ray: needs Ray; pip install 'asyncrl[ray]' on every machine") from error
    return ray


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
