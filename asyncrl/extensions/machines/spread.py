"""Which machine each process of a run is on, and which of its GPUs it has. Pure.

    head (the run folder)    launcher, buffers, old policy, the trainers' first ranks
    nodes                    the buffers if they are to be there, the trainers' other ranks, engines, environments,
                             rollout workers

Buffers, trainers and engines are those of all policies.

The head takes an engine, environment or worker only where no node takes that role, or the nodes have no GPU left for
it. Each process goes to the machine with the fewest so far.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asyncrl.config import Config
from asyncrl.config_sections import EngineConfig, TrainConfig
from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.messages import NODE_ROLES
from asyncrl.extensions.machines.settings import TrainerMachines
from asyncrl.extensions.table import rows
from asyncrl.gpus import visible_env
from asyncrl.launch.machines.placement import Numbers, Placement, env_names, prefixed, setting_of
from asyncrl.services.command import with_trainer, with_workers
from asyncrl.tls import VARIABLE as TLS
from asyncrl.tls import scheme
from asyncrl.types import MAIN_POLICY

if TYPE_CHECKING:
    from asyncrl.extensions.machines.cluster import NodeCluster

TRAINER = "trainer"
TRANSFER = "engine.weight_transfer"
PORT = 8700
"""Where nodes register, unless another port is given."""
GROUPS = "groups of torch.distributed"


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


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """`nodes`: how many machines beside this one. `host`: where this machine's services listen, "" for its address on
    the default route. `port`: where nodes register. `advertise`: the host that others are told, if another. `starter`:
    makes what starts the nodes; None where somebody does by hand.
    """

    nodes: int
    host: str = ""
    port: int = PORT
    advertise: str = ""
    starter: Callable[[Launcher], NodeStarter] | None = None

    @property
    def comes_by_itself(self) -> bool:
        """True where the run starts its nodes, False where somebody does by hand."""
        return self.starter is not None

    def cluster(self, config: Config, folder: Path) -> NodeCluster:
        """Return the machines of one run. Raises `ConfigError`."""
        # Imported here: a run on one machine serves nothing from the launcher.
        from asyncrl.extensions.machines.cluster import NodeCluster

        return NodeCluster(self, config, folder)


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: its name, how many GPUs it has, and the roles it takes."""

    name: str
    gpus: int
    roles: frozenset[str]


@dataclass(frozen=True, slots=True)
class Place:
    """The machine of a process, and its GPUs there as positions; None where the machine has none."""

    machine: str
    gpus: Numbers | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The places of all processes by name, and those of the main trainer's parts, the head's first. `further`: by the
    name of an engine or another policy's trainer over several machines, its places but the first, which has its
    server or its first ranks."""

    processes: Mapping[str, Place]
    trainer: Sequence[Place]
    further: Mapping[str, Sequence[Place]] = field(default_factory=dict)

    def parts(self, name: str) -> Sequence[Place]:
        """Return the places of a process."""
        if name == TRAINER:
            return self.trainer
        return [self.processes[name], *self.further.get(name, ())]

    def moved(self, name: str, part: int, place: Place) -> Spread:
        """Return this with a part of a process elsewhere."""
        return self.with_parts(name, [place if n == part else old for n, old in enumerate(self.parts(name))])

    def with_parts(self, name: str, parts: Sequence[Place]) -> Spread:
        """Return this with a process in these places."""
        if name == TRAINER:
            return replace(self, trainer=parts)
        return replace(self, processes={**self.processes, name: parts[0]}, further=self._further(name, parts))

    def _further(self, name: str, parts: Sequence[Place]) -> Mapping[str, Sequence[Place]]:
        others = {one: places for one, places in self.further.items() if one != name}
        return {**others, name: parts[1:]} if len(parts) > 1 else others

    def __str__(self) -> str:
        """One line for the user."""
        by_machine: dict[str, list[str]] = {}
        for part in self.trainer:
            by_machine.setdefault(part.machine, []).append(_described(TRAINER, part))
        for name in self.processes:
            for place in self.parts(name):
                by_machine.setdefault(place.machine, []).append(_described(name, place))
        return "; ".join(f"{machine}: {', '.join(names)}" for machine, names in by_machine.items())


def spread(config: Config, head: Machine, nodes: Sequence[Machine]) -> Spread:
    """Return where the processes go. Raises `ConfigError` naming keys and numbers."""
    check_machines(config)
    free = {machine.name: list(range(machine.gpus)) for machine in (head, *nodes)}
    count = dict.fromkeys(free, 0)

    def place(machine: Machine, gpus: int) -> Place:
        count[machine.name] += 1
        own = free[machine.name]
        taken, free[machine.name] = tuple(own[:gpus]), own[gpus:]
        return Place(machine.name, taken if machine.gpus else None)

    def best(key: str, role: str, gpus: int, beside: Sequence[Place] = ()) -> Machine:
        """Return where a process goes, or the next part of one that has those beside it on other machines."""
        taken = {place.machine for place in beside}
        able = [machine for machine in nodes if role in machine.roles and machine.name not in taken]
        for found in (
            [m for m in able if len(free[m.name]) >= gpus],
            [head] if len(free[head.name]) >= gpus and head.name not in taken else [],
        ):
            if found:
                return min(found, key=lambda machine: count[machine.name])
        wanted = f"no machine has {gpus} GPUs left for another {role}"
        if beside:
            wanted = f"no further machine has {gpus} GPUs for part {len(beside) + 1} of another {role}"
        raise ConfigError(f"{key}: {wanted}; {_left(free)}. Lower it, or add nodes")

    with_gpus = any(machine.gpus for machine in (head, *nodes))
    parts = config.train.num_machines
    ranks = config.train.ranks // parts if with_gpus else 0
    others = [machine for machine in nodes if TRAINER in machine.roles][: parts - 1]
    if len(others) < parts - 1:
        raise ConfigError(
            f"train.nodes = {parts} needs {parts - 1} nodes that take the trainer beside this machine, there are "
            f"{len(others)}; start more, or lower it"
        )
    for machine in (head, *others):
        if len(free[machine.name]) < ranks:
            raise ConfigError(
                f"train.ranks = {config.train.ranks} on train.nodes = {parts} needs {ranks} GPUs on each, "
                f"{machine.name} has {machine.gpus}"
            )
    trainer = [place(machine, ranks) for machine in (head, *others)]
    processes = {}
    further = {}
    for policy in config.policies:
        train = config.policy(policy).train
        own = train.ranks_each if with_gpus else 0
        if len(free[head.name]) < own:
            key, of = setting_of(policy, "train.nodes"), "as many GPUs"
            if train.num_machines > 1:
                of = f"{own} GPUs on each of {key} = {train.num_machines}, and so"
            raise ConfigError(
                f"{setting_of(policy, 'train.ranks')} = {train.ranks} needs {of} of this machine beside those of the "
                f"other trainers; {_left(free)}"
            )
        places = [place(head, own)]
        for _ in range(train.num_machines - 1):
            key = setting_of(policy, "train.nodes")
            places.append(place(best(key, TRAINER, own, places), own))
        name = prefixed(policy, TRAINER)
        processes[name] = places[0]
        if places[1:]:
            further[name] = places[1:]
    for policy in config.policy_names:
        if not config.policy(policy).buffer.may_move:
            continue
        key = setting_of(policy, "buffer.machine")
        if not any("buffer" in machine.roles for machine in nodes):
            raise ConfigError(f"{key} = node: no node takes the buffer; start one whose --roles name it")
        processes[prefixed(policy, "buffer")] = place(best(key, "buffer", 0), 0)
    largest = max(machine.gpus for machine in (head, *nodes))
    for policy, engine in engine_sections(config).items():
        size = engine.ranks_each if with_gpus else 0
        nodes_key = setting_of(policy, "engine.nodes")
        if size > largest:
            wanted = (
                f"on {nodes_key} = {engine.num_machines} needs {size} GPUs on each"
                if engine.num_machines > 1
                else f"one engine is on one machine, unless {nodes_key} says otherwise"
            )
            raise ConfigError(
                f"{setting_of(policy, engine.said_ranks)}: {wanted}, and the largest machine has {largest} GPUs; "
                f"lower it, or raise {nodes_key}"
            )
        for index in range(engine.count):
            places = []
            for _ in range(engine.num_machines):
                key = nodes_key if places else setting_of(policy, "engine.count")
                places.append(place(best(key, "engine", size, places), size))
            name = prefixed(policy, f"engine-{index}")
            processes[name] = places[0]
            if places[1:]:
                further[name] = places[1:]
    for name in env_names(config):
        processes[name] = place(best("env.services", "env", 0), 0)
    for index in range(config.rollout.workers):
        processes[f"rollout-{index}"] = place(best("rollout.workers", "rollout", 0), 0)
    return Spread(processes, trainer, further)


def on_nodes(config: Config, policy: str) -> bool:
    """True for a further policy of which something runs on nodes."""
    own = config.policy(policy)
    return not config.shares_engines(policy) or own.train.num_machines > 1 or own.buffer.may_move


def train_section(config: Config, name: str) -> TrainConfig | None:
    """Return how a trainer is, by the name of its process; None for another process."""
    if _role(name) != TRAINER:
        return None
    return config.policy(name.removesuffix(TRAINER).removesuffix("-") or MAIN_POLICY).train


def engine_sections(config: Config) -> dict[str, EngineConfig]:
    """Return how the engines of each policy are that has engines of its own."""
    further = (name for name in config.policies if not config.shares_engines(name))
    return {name: config.policy(name).engine for name in (MAIN_POLICY, *further)}


def engine_section(config: Config, name: str) -> EngineConfig | None:
    """Return how the engine of this name is; None where it is the name of no engine."""
    for policy, section in engine_sections(config).items():
        if re.fullmatch(rf"{re.escape(prefixed(policy, 'engine'))}-\d+", name):
            return section
    return None


def _role(name: str) -> str:
    """Return the role that a machine must take for a process."""
    found = re.fullmatch(r"(?:.+-)?(?:(engine)-\d+|(trainer|buffer))", name)
    return next(filter(None, found.groups())) if found else name.split("-")[0]


def replaced(
    found: Spread, name: str, head: Machine, nodes: Sequence[Machine], part: int = 0
) -> Spread | None:
    """Return `found` with one process, or a part of one, on another machine; None if none has room.

    nodes: those that can be used, the lost one not among them.
    """
    old = found.parts(name)[part]
    gpus = len(old.gpus or ())
    others = [place for one in (TRAINER, *found.processes) for place in found.parts(one) if place is not old]
    # No two parts of a process are on one machine.
    role = _role(name)
    taken = {place.machine for place in found.parts(name) if role == TRAINER or place is not old}

    def free(machine: Machine) -> list[int]:
        used = {number for place in others if place.machine == machine.name for number in place.gpus or ()}
        return [number for number in range(machine.gpus) if number not in used]

    def able(machines: Sequence[Machine]) -> list[Machine]:
        return [m for m in machines if role in m.roles and m.name not in taken and len(free(m)) >= gpus]

    count = collections.Counter(place.machine for place in others)
    for machines in (able(nodes), able([head])):
        if machines:
            best = min(machines, key=lambda machine: count[machine.name])
            new = Place(best.name, tuple(free(best)[:gpus]) if best.gpus else None)
            return found.moved(name, part, new)
    return None


def relocated(
    found: Spread, name: str, config: Config, head: Machine, nodes: Sequence[Machine]
) -> Spread | None:
    """Return `found` with all parts of a process on machines that can be used; None if there is no room for one.

    Without room for all of its parts a trainer has fewer. nodes: those that can be used.
    """
    usable = {head.name, *(node.name for node in nodes)}
    moved = found
    for part, place in enumerate(found.parts(name)):
        if place.machine in usable:
            continue
        there = replaced(moved, name, head, nodes, part)
        if there is None:
            return with_fewer(moved, name, config, usable) if _role(name) == TRAINER else None
        moved = there
    return moved


def with_fewer(found: Spread, name: str, config: Config, usable: Collection[str]) -> Spread | None:
    """Return `found` with a trainer on those of its machines that can be used, None if they are too few.

    usable: names of machines. What consecutive ranks compute together stays whole.
    """
    train, parts = train_section(config, name), found.parts(name)
    assert isinstance(train, TrainerMachines)
    left = [place for place in parts if place.machine in usable]
    while left and train.ranks_each * len(left) % (train.sequence_parallel * train.tensor_parallel):
        left.pop()
    # Rank 0 is on the head, whose loss ends the run.
    if len(left) < train.min_nodes or not left or left[0] != parts[0]:
        return None
    return found.with_parts(name, left)


def with_all(
    found: Spread, name: str, config: Config, head: Machine, nodes: Sequence[Machine]
) -> Spread | None:
    """Return `found` with a trainer that has fewer than its machines on all of them again; None if there is no room.

    nodes: those that can be used.
    """
    train, parts = train_section(config, name), found.parts(name)
    assert train is not None
    missing = train.num_machines - len(parts)
    if not missing:
        return None
    gpus = train.ranks_each if any(machine.gpus for machine in (head, *nodes)) else 0
    nowhere = [Place("", tuple(range(gpus)))] * missing
    grown: Spread | None = found.with_parts(name, [*parts, *nowhere])
    for part in range(len(parts), train.num_machines):
        grown = replaced(grown, name, head, nodes, part) if grown is not None else None
    return grown


def with_room(
    found: Spread, name: str, gpus: int, head: Machine, nodes: Sequence[Machine], parts: int = 1
) -> Spread | None:
    """Return `found` with one more process; None if the machines have no room for it.

    gpus: that it needs on each of `parts` machines. nodes: those that can be used.
    """
    nowhere = [Place("", tuple(range(gpus))) for _ in range(parts)]
    grown = replace(
        found,
        processes={**found.processes, name: nowhere[0]},
        further={**found.further, name: nowhere[1:]} if parts > 1 else found.further,
    )
    for part in range(parts):
        moved = replaced(grown, name, head, nodes, part)
        if moved is None:
            return None
        grown = moved
    return grown


def without(found: Spread, name: str) -> Spread:
    """Return `found` without a process."""
    return replace(
        found,
        processes={one: place for one, place in found.processes.items() if one != name},
        further={one: places for one, places in found.further.items() if one != name},
    )


def check_one_machine(config: Config) -> None:
    """Raise `ConfigError` for what needs several machines, in a run on one."""
    for policy in config.policy_names:
        if (parts := config.policy(policy).train.num_machines) > 1:
            raise ConfigError(
                f"{setting_of(policy, 'train.nodes')} = {parts}: the run is on one machine; start it with --on nodes"
            )
    for policy, engine in engine_sections(config).items():
        if engine.num_machines > 1:
            key = setting_of(policy, "engine.nodes")
            raise ConfigError(
                f"{key} = {engine.num_machines}: the run is on one machine; start it with --on nodes, ray or slurm"
            )
    if config.buffer.may_move:
        raise ConfigError(
            "buffer.machine = node: the run is on one machine; start it with --on nodes, or set buffer.machine=head"
        )


def check_fits(config: Config, machines: int, gpus: int) -> None:
    """Raise `ConfigError` for a run that does not fit on so many machines that are alike, with `gpus` each. Where that
    is not known, and one machine is all, only what needs several is refused."""
    if machines > 1:
        alike = [
            Machine(f"machine {number}", gpus, frozenset(NODE_ROLES)) for number in range(1, machines + 1)
        ]
        spread(config, alike[0], alike[1:])
    elif config.engine.num_machines > 1:
        raise ConfigError(
            f"engine.nodes = {config.engine.num_machines}: the run has one machine; raise --nodes"
        )


def machines_text(config: Config, machines: int, gpus: int) -> str:
    """Return on which of machines that are alike each process would be. Raises `ConfigError`."""
    if machines == 1:
        return "all on this machine"
    alike = [Machine(f"machine {number}", gpus, frozenset(NODE_ROLES)) for number in range(1, machines + 1)]
    return str(spread(config, alike[0], alike[1:]))


def _unencrypted(transfer: str) -> str:
    """Return what the bytes of a way of weights go over where others on the network could read them; "" otherwise."""
    known = {row.name: row.unencrypted for row in rows("weight_carriers")}
    return known.get(transfer, "")


def check_run_machines(config: Config, alone: bool) -> None:
    """Raise `ConfigError` for settings that do not go with the machines of the run. alone: whether it has one only."""
    (check_one_machine if alone else check_machines)(config)


def check_machines(config: Config) -> None:
    """Raise `ConfigError` for settings that need all processes on one machine."""
    section = config.placement
    beside = [row.name for row in (*with_trainer(config), *with_workers(config))]
    for key in ("trainer", "engines", "evaluation", *beside, "servers"):
        if given := getattr(section, key):
            raise ConfigError(
                f"placement.{key} must be left out where a run has several machines, which have GPUs of their own, got "
                f"{given}"
            )
    engines = engine_sections(config)
    if scheme() == "https":
        for key, unencrypted in (
            *(
                (setting_of(p, "train.nodes"), GROUPS if config.policy(p).train.num_machines > 1 else "")
                for p in config.policy_names
            ),
            *(
                (setting_of(p, "engine.nodes"), GROUPS if e.num_machines > 1 else "")
                for p, e in engines.items()
            ),
            *((setting_of(p, TRANSFER), _unencrypted(e.weight_transfer)) for p, e in engines.items()),
        ):
            if unencrypted:
                raise ConfigError(
                    f"{key}: the {unencrypted} that this needs between machines are not encrypted, and "
                    f"{TLS} asks for that; set train.nodes=1, engine.nodes=1 and "
                    f"engine.weight_transfer=http, or unset {TLS}"
                )
    for policy, engine in engines.items():
        if engine.weight_transfer == "shared_file":
            raise ConfigError(
                f"{setting_of(policy, TRANSFER)} must not be 'shared_file' where a run has several machines: its "
                "engines do not see the trainer's folder; set engine.weight_transfer=http, or one that asks for a "
                "fast network of their own (docs/engine-and-trainer.md)"
            )


@dataclass(frozen=True, slots=True)
class SpreadPlacement(Placement):
    """What processes are told of their GPUs where they are on several machines: positions on their own machine, and on
    the head names."""

    spread: Spread = field(default_factory=lambda: Spread({}, ()))
    head: str = ""

    def trainer_env(self, policy: str = MAIN_POLICY) -> dict[str, str]:
        return self.env_of(self._trainer(policy))

    def _trainer(self, policy: str) -> Place:
        """Return where a policy's trainer is, or its first part."""
        return (
            self.spread.trainer[0]
            if policy == MAIN_POLICY
            else self.spread.processes[prefixed(policy, TRAINER)]
        )

    def engine_env(self, index: int, policy: str = MAIN_POLICY) -> dict[str, str]:
        return self.env_of(self.spread.processes[prefixed(policy, f"engine-{index}")])

    def evaluation_env(self) -> dict[str, str]:
        return visible_env(self.gpus[-1:]) if self.gpus else {}

    def beside_env(self, role: str, policy: str = MAIN_POLICY) -> dict[str, str]:
        first = self._trainer(policy).gpus or ()
        return visible_env([self.gpus[number] for number in first[:1]]) if self.gpus else {}

    def env_of(self, place: Place) -> dict[str, str]:
        """Return the variables that show a process its GPUs; none on a machine without any."""
        if place.gpus is None:
            return {}
        if place.machine == self.head:
            return visible_env([self.gpus[number] for number in place.gpus])
        return visible_env([str(number) for number in place.gpus])

    def __str__(self) -> str:
        return str(self.spread)


def _described(name: str, place: Place) -> str:
    return f"{name} (GPU {'+'.join(map(str, place.gpus))})" if place.gpus else name


def _left(free: Mapping[str, Sequence[int]]) -> str:
    return "left are " + ", ".join(f"{len(numbers)} on {name}" for name, numbers in free.items())
