"""The processes of a training run: which there are, how each is started, and how it is probed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.endpoint import stop_file, write_addresses
from asyncrl.gpus import found_gpus
from asyncrl.launch.machines.placement import Placement, env_names, plan, prefixed
from asyncrl.launch.processes.health_probes import EngineProbe, HeartbeatProbe, HttpProbe
from asyncrl.launch.processes.process_group import ManagedProcess, Placed, ProcessGroup, generation_nice
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.launch.roles.buffer_place import buffer_place
from asyncrl.run.metrics import read_metrics
from asyncrl.run.model_folder import check_model, remember_model
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.services.command import with_trainer, with_workers
from asyncrl.services.engine.urls import policy_url
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.folders import policy_weights

log = logging.getLogger("asyncrl.launch")

MAX_RETIRED = 1024
"""Addresses of retired processes that others are told."""


class PolicyRoles:
    """The processes that one policy has for itself: buffer, engines and trainer.

    name: of the policy; that of any but the main one is in the names of its processes. host: whose engines serve it,
    if not its own.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        model: str,
        weights_dir: Path,
        process_group: ProcessGroup,
        name: str = MAIN_POLICY,
        host: PolicyRoles | None = None,
        placement: Placement | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.model = model
        self.weights_dir = weights_dir
        self.process_group = process_group
        self.name = name
        self.prefix = prefixed(name, "")
        self.host = host
        self.placement = placement or plan(config, found_gpus())
        self.credentials = process_group.credentials
        self.nice = generation_nice()
        """The niceness of engines, environments and workers."""
        self.engines: list[ManagedProcess] = []
        self.beside: dict[str, ManagedProcess] = {}
        """What the trainer has for itself, by role, where the recipe asks for it."""
        self.added: list[ManagedProcess] = []
        """Those of the engines, and of the environments of a run, that were started while it went on."""
        self.retired: list[str] = []
        """Addresses at which such processes take nothing new, latest last."""
        self.buffer_place = buffer_place(config, folder)
        self.buffer: ManagedProcess
        self.trainer: ManagedProcess
        self.supervisor: Supervisor
        """The run's."""

    def start_services(self) -> None:
        """Start buffer and engines; `wait_engines` waits until these serve. Raises `ConfigError`.

        Engines that have a GPU in common start one after the other: each measures what memory is left.
        """
        check_model(self.folder, self.model)
        remember_model(self.folder, self.model)
        further = self.buffer_place.start(self.process_group, self.prefix, self.config.run.start_timeout_s)
        self.buffer = self.process_group.start(
            f"{self.prefix}buffer",
            ["serve", "buffer", *self._folder(), "--model", self.model, *further],
            self.placement.service_env(),
        )
        self.engines = self._start_engines()

    def start_trainer(self) -> None:
        """Start the trainer, which loads its model meanwhile; `wait_engines` gives it the addresses of the engines."""
        self.process_group.wait_ready(self.buffer, self.config.run.start_timeout_s)
        self._probe = self._trainer_probe()
        self._probe.reset()
        beside = [row.name for row in with_trainer(self.config)]
        files = [self._beside_file(role) for role in beside]
        for file in (self._engine_addresses_file, *files, stop_file(self.folder)):
            file.unlink(missing_ok=True)
        for role in beside:
            self.beside[role] = self.process_group.start(
                f"{self.prefix}{role.replace('_', '-')}",
                ["serve", role, *self._engine_argv(), "--buffer", self.buffer_address(role)],
                self.placement.beside_env(role, self.name),
                nice=self.nice,
            )
        self.trainer = self.process_group.start(
            f"{self.prefix}trainer", self._trainer_argv(), self.placement.trainer_env(self.name), ready=False
        )

    def wait_engines(self) -> None:
        """Call when the trainer has been started. Raises `UnavailableError`, `DeadlineError`."""
        for process in self.engines:
            self.process_group.wait_ready(process, self.config.run.start_timeout_s)
        for role, process in self.beside.items():
            self.process_group.wait_ready(process, self.config.run.start_timeout_s)
            write_addresses(self._beside_file(role), [self.route("trainer", process)])
        write_addresses(self._engine_addresses_file, self.engine_addresses("trainer"))

    def readmit(self, workers: Sequence[str]) -> None:
        """Readmit workers that an earlier launch of the run has quarantined: these are new processes, as are its
        engines."""
        buffer = BufferClientSync(self.buffer_address(), self.credentials.bearer("buffer"))
        try:
            for name in workers:
                if was := buffer.readmit(name):
                    log.warning("%s was quarantined (%s); it is readmitted", name, was)
            for engine in buffer.stats()["faulty_engines"]:
                buffer.readmit_users(engine)
        finally:
            buffer.close()

    def watch(self) -> None:
        """Have them supervised."""
        if self.buffer_place.front is not None:
            self._supervise(self.buffer_place.front)
        self._supervise(self.buffer)
        for process in self.engines:
            self._supervise(process, "engine")
        for process in self.beside.values():
            self._supervise(process)
        trainer_start_s = self.config.run.start_timeout_s
        self.supervisor.watch(
            self.trainer, self._probe, trainer_start_s, ends=True, serving=False, after=self._before_trainer()
        )

    def _supervise(self, process: ManagedProcess, role: str = "") -> None:
        engine = EngineProbe(process, self.credentials.bearer("engine")) if role == "engine" else None
        probe = engine or HttpProbe(process, "/healthz")
        self.supervisor.watch(process, probe, self.config.run.start_timeout_s)

    def _before_trainer(self) -> list[ManagedProcess]:
        """Return the engines that share a GPU with the trainer."""
        trainer = set(self.placement.trainers.get(self.name, ()))
        engines = [*self.engines, *(self.host.engines if self.host is not None else ())]
        sharing = {
            prefixed(name, f"engine-{index}")
            for name, placed in self.placement.engines.items()
            for index, numbers in enumerate(placed)
            if trainer & set(numbers)
        }
        return [engine for engine in engines if engine.name in sharing]

    def trainer_ready(self) -> bool:
        """True once the trainer has loaded its model."""
        return (self.folder / "endpoints" / "trainer-0.ready").exists()

    def ask_trainer_to_stop(self) -> bool:
        """Ask the trainer to end with a checkpoint after its current step; False if none is training."""
        started = getattr(self, "trainer", None)
        if started is None or not started.alive() or not self.trainer_ready():
            return False
        stop_file(self.folder).touch()
        return True

    def route(self, caller: str, callee: ManagedProcess) -> str:
        """Return the address under which `caller` reaches `callee`."""
        return callee.url

    def buffer_address(self, caller: str = "") -> str:
        """Return the address under which `caller` reaches the buffer, wherever it moves; "": the launcher."""
        found = self.buffer_place.front or self.buffer
        return self.route(caller, found) if caller else found.url

    def engine_addresses(self, caller: str = "") -> list[str]:
        """Return the addresses under which `caller` reaches the engines that serve this policy; "": their own."""
        if self.host is not None:
            return [policy_url(url, self.name) for url in self.host.engine_addresses(caller)]
        return [self.route(caller, engine) if caller else engine.url for engine in self.engines]

    def job(self) -> dict[str, Any]:
        """Return what a process must know to join the job."""
        return {
            "config": self.config.model_dump(mode="json"),
            "model": str(Path(self.model).resolve()) if Path(self.model).exists() else self.model,
            "weights_dir": str(self.weights_dir),
            "engines": self.engine_addresses(),
            "envs": [],
            "policies": [],
            "beside": {},
            "moved": self._moved_engines(),
            **self._changed(("engine",)),
        }

    def _changed(self, roles: Sequence[str]) -> dict[str, Any]:
        """Return which processes of these roles came or took their leave while the run went on."""
        if self.host is not None:
            found = self.host._changed(("engine",))
            added = {"engine": [policy_url(url, self.name) for url in found["added"]["engine"]]}
            return {"added": added, "retired": [policy_url(url, self.name) for url in found["retired"]]}
        added = {role: [one.url for one in self.of_role(role) if one in self.added] for role in roles}
        return {"added": added, "retired": self.retired[-MAX_RETIRED:]}

    def of_role(self, role: str) -> list[ManagedProcess]:
        """Return the processes of a role that take part: "engine", and of a run "rollout" or "env"."""
        assert role == "engine"
        return self.engines

    def start_one(self, role: str) -> ManagedProcess | None:
        """Start one more process of a role, which takes part once it was `admit`ted; None where no machine has room.

        Call from the main thread. Raises `AsyncRLError` where it cannot be started.
        """
        known = {process.name for process in self.process_group.processes}
        index = 0
        while (name := self._name(role, index)) in known:
            index += 1
        group = self.process_group
        if group.room is None:
            gpus = self.placement.engine_env(index, self.name) if role == "engine" else {}
            found: Placed | None = (group.host, gpus)
        else:
            found = group.room(name)
        if found is None:
            return None
        host, env = found
        if role == "rollout":
            env = {**env, **self.placement.service_env()}
        return group.start(name, self._argv(role, name), dict(env), nice=self.nice, host=host)

    def admit(self, role: str, process: ManagedProcess) -> None:
        """Have a process take part that `start_one` has started and that serves."""
        self.of_role(role).append(process)
        if role != "rollout":
            self.added.append(process)
        # Another process may have had the address before.
        self.retired = [url for url in self.retired if url != process.url]
        self._supervise(process, role)

    def retire(self, role: str, process: ManagedProcess | None = None) -> ManagedProcess:
        """Have a process of a role, the newest unless one is given, take no further part; it runs on until it is ended.
        Return it."""
        process = process or self.of_role(role)[-1]
        self.of_role(role).remove(process)
        self.supervisor.retire(process)
        if role != "rollout":
            self.added = [one for one in self.added if one is not process]
            self.retired += [*process.earlier_urls, process.url]
        return process

    def can_leave(self, process: ManagedProcess) -> bool:
        """True for an engine that the policy could do without."""
        return process in self.engines and len(self.engines) > 1

    def leave(self, process: ManagedProcess) -> None:
        """End an engine, with what it is doing, and have it take no further part."""
        self.process_group.forget(self.retire("engine", process))

    def _argv(self, role: str, name: str) -> list[str]:
        return ["serve", role, *self._engine_argv()]

    def _name(self, role: str, index: int) -> str:
        return prefixed(self.name, f"{role}-{index}")

    def _moved_engines(self) -> dict[str, str]:
        """Return where the engines that serve this policy are now, by their earlier addresses."""
        if self.host is None:
            return self._moved(self.engines)
        found = self.host._moved_engines()
        return {policy_url(old, self.name): policy_url(new, self.name) for old, new in found.items()}

    def _moved(self, processes: Sequence[ManagedProcess]) -> dict[str, str]:
        """Return where processes are now that others may know at another address."""
        return {
            url: process.url for process in processes for url in process.earlier_urls if url != process.url
        }

    def _start_engines(self) -> list[ManagedProcess]:
        if self.host is not None:
            return []
        started = []
        for index in range(self.config.engine.count):
            engine = self.process_group.start(
                f"{self.prefix}engine-{index}",
                ["serve", "engine", *self._engine_argv()],
                self.placement.engine_env(index, self.name),
                nice=self.nice,
            )
            if self.placement.engines_in_turn:
                self.process_group.wait_ready(engine, self.config.run.start_timeout_s)
            started.append(engine)
        return started

    def _trainer_probe(self) -> HeartbeatProbe:
        endpoints = self.folder / "endpoints"
        heartbeats = [endpoints / f"trainer-{rank}.beat" for rank in range(self.config.train.ranks)]
        return HeartbeatProbe(
            endpoints / "trainer-0.ready", heartbeats, self._steps_done, lambda: self._trainer_ranks
        )

    @property
    def _trainer_ranks(self) -> int:
        """How many ranks the trainer has: fewer than it should while one of its machines is lost."""
        return self.config.train.ranks_each * self.trainer.host.num_machines

    def _steps_done(self) -> int:
        return max((record["step"] for record in read_metrics(self.folder)), default=0)

    @property
    def _engine_addresses_file(self) -> Path:
        return self.folder / "endpoints" / "trainer-engines.json"

    def _beside_file(self, role: str) -> Path:
        return self.folder / "endpoints" / f"trainer-{role.replace('_', '-')}.json"

    def _folder(self) -> list[str]:
        return ["--folder", str(self.folder)]

    def _engine_argv(self) -> list[str]:
        return [*self._folder(), "--model", self.model, "--weights-dir", str(self.weights_dir)]

    def _trainer_argv(self) -> list[str]:
        return [
            *("serve", "trainer", *self._folder(), "--model", self.model),
            *("--buffer", self.buffer_address("trainer"), "--weights-dir", str(self.weights_dir)),
            *("--engines", f"@{self._engine_addresses_file}"),
            *(word for role in self.beside for word in ("--beside", f"{role}=@{self._beside_file(role)}")),
            *self._main_buffer_argv(),
        ]

    def _main_buffer_argv(self) -> list[str]:
        """Return what the trainer of a policy without agents is told of the policy whose agents it plays."""
        if self.host is None or self.host.config.policies[self.name].agents:
            return []
        return ["--main-buffer", self.host.buffer_address("trainer")]


class Roles(PolicyRoles):
    """All processes: those of the main policy, of further ones, and those they share (environments, workers).

    Starts buffers, environments, engines and trainers together, workers when those serve. Trainers that share GPUs
    with engines start when these serve.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        model: str,
        weights_dir: Path,
        placement: Placement | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        process_group = process_group or ProcessGroup(folder)
        super().__init__(config, folder, model, weights_dir, process_group, placement=placement)
        self.supervisor = Supervisor(
            self.process_group,
            folder / "restarts.jsonl",
            config.run.silence_timeout_s,
            self._check_models,
            self._progress,
            config.run.node_timeout_s,
        )
        self.finished_groups = 0
        """Groups that were finished, as of the latest counts of the main policy's buffer."""
        self.policies: dict[str, PolicyRoles] = {}
        """Further policies by name."""
        self.workers: list[ManagedProcess] = []
        self.beside_workers: dict[str, ManagedProcess] = {}
        """What the workers have for themselves, by role, where the recipe asks for it."""
        self.envs: list[ManagedProcess] = []

    def name_of_engine(self, url: str) -> str:
        """Return what the engine at an address, as a worker knows it, is called; "" for one that is starting again."""
        server = url.partition("/policies/")[0]
        for engine in self.every_engine:
            if server in (engine.url, *engine.earlier_urls, self.route("rollout", engine)):
                return engine.name if self.supervisor.serves(engine) else ""
        return f"the engine at {server}"

    def add_policy(self, name: str, config: Config, folder: Path, model: str) -> None:
        """Add the processes of a further policy. Call before `start`."""
        weights_dir = Path(policy_weights(str(self.weights_dir), name))
        host = self if self.config.shares_engines(name) else None
        policy = PolicyRoles(
            config, folder, model, weights_dir, self.process_group, name, host, self.placement
        )
        policy.supervisor = self.supervisor
        self.policies[name] = policy

    def start(self) -> None:
        """Start everything and have it supervised. Raises `UnavailableError`, `DeadlineError`, `ConfigError`."""
        process_group, policies = self.process_group, self.every_policy
        start_s = self.config.run.start_timeout_s
        for policy in policies:
            policy.start_services()
        self.envs = [
            process_group.start(name, ["serve", "env", *self._folder()], nice=self.nice)
            for name in env_names(self.config)
        ]
        self.beside_workers = start_beside_workers(
            process_group, self.config, self.folder, self.placement, self.nice, self.model
        )
        if self.placement.engines_first:
            for engine in self.every_engine:
                process_group.wait_ready(engine, start_s)
        for policy in policies:
            policy.start_trainer()
        for process in (*self.envs, *self.beside_workers.values()):
            process_group.wait_ready(process, start_s)
        for policy in policies:
            policy.wait_engines()
        names = [f"rollout-{i}" for i in range(self.config.rollout.workers)]
        for policy in policies:
            policy.readmit(names)
        no_gpu = self.placement.service_env()
        self.workers = [
            process_group.start(name, self._worker_argv(name), no_gpu, nice=self.nice) for name in names
        ]
        for process in self.workers:
            process_group.wait_ready(process, start_s)
        for process in (*self.envs, *self.beside_workers.values(), *self.workers):
            self._supervise(process)
        for policy in policies:
            policy.watch()

    def job(self) -> dict[str, Any]:
        return super().job() | {
            "envs": [process.url for process in self.envs],
            "policies": self._policy_addresses(),
            "beside": {role: self.route("rollout", one) for role, one in self.beside_workers.items()},
            "moved": self._moved([*self.engines, *self.envs]),
            **self._changed(("engine", "env")),
        }

    def of_role(self, role: str) -> list[ManagedProcess]:
        return {"rollout": self.workers, "env": self.envs, "engine": self.engines}[role]

    def _argv(self, role: str, name: str) -> list[str]:
        if role == "rollout":
            return self._worker_argv(name)
        return ["serve", "env", *self._folder()] if role == "env" else super()._argv(role, name)

    def _name(self, role: str, index: int) -> str:
        if role == "env":
            return env_names(self.config, index + 1)[index]
        return f"rollout-{index}" if role == "rollout" else super()._name(role, index)

    @property
    def every_policy(self) -> list[PolicyRoles]:
        """All policies of the run, the main one first."""
        return [self, *self.policies.values()]

    @property
    def every_engine(self) -> list[ManagedProcess]:
        """Those of all policies."""
        return [engine for policy in self.every_policy for engine in policy.engines]

    def _progress(self) -> int:
        """Return how far the run has come: the steps of all policies and the groups that were finished."""
        return self.finished_groups + sum(p._steps_done() for p in self.every_policy)

    def _check_models(self) -> None:
        for policy in self.every_policy:
            check_model(policy.folder, policy.model)

    def _policy_addresses(self) -> list[str]:
        """Return the addresses of further policies, as `asyncrl serve rollout --policy` takes them."""
        return [
            f"{name}={','.join([policy.buffer_address('rollout'), *policy.engine_addresses('rollout')])}"
            for name, policy in self.policies.items()
        ]

    def _worker_argv(self, name: str) -> list[str]:
        policies = [word for where in self._policy_addresses() for word in ("--policy", where)]
        return [
            *("serve", "rollout", *self._folder(), "--model", self.model, "--name", name, *policies),
            *("--buffer", self.buffer_address("rollout")),
            *(("--env", *(self.route("rollout", process) for process in self.envs)) if self.envs else ()),
            *("--engines", *self.engine_addresses("rollout")),
            *beside_words({role: self.route("rollout", one) for role, one in self.beside_workers.items()}),
        ]


def start_beside_workers(
    process_group: ProcessGroup,
    config: Config,
    folder: Path,
    placement: Placement,
    nice: int = 0,
    model: str = "",
) -> dict[str, ManagedProcess]:
    """Start what rollout workers have for themselves, where the configuration in `folder` asks for it; return the
    processes by role. They may not serve yet. model: which a run starts from; "" for an evaluation."""
    return {
        row.name: process_group.start(
            row.name.replace("_", "-"),
            [
                *("serve", row.name, "--folder", str(folder)),
                *(("--model", model) if model and row.of_start_model else ()),
            ],
            placement.beside_env(row.name),
            nice=nice,
        )
        for row in with_workers(config)
    }


def beside_words(addresses: Mapping[str, str]) -> list[str]:
    """Return how a worker is told the addresses of these processes, by role."""
    return [word for role, url in addresses.items() for word in ("--beside", f"{role}={url}")]
