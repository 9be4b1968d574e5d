"""The processes that one policy of a run has for itself: which there are, how each is started, and how it is probed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.config import Config
from asyncrl.endpoint import stop_file, write_addresses
from asyncrl.launch.machines.placement import prefixed
from asyncrl.launch.processes.health_probes import HeartbeatProbe
from asyncrl.launch.processes.process_group import ManagedProcess
from asyncrl.launch.roles.buffer_place import buffer_place
from asyncrl.run.metrics import read_metrics
from asyncrl.run.model_folder import check_model, remember_model
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.services.command import with_trainer
from asyncrl.services.engine.urls import policy_url

if TYPE_CHECKING:
    from asyncrl.launch.roles.roles import Roles

log = logging.getLogger("asyncrl.launch")

MAX_RETIRED = 1024
"""Addresses of retired processes that others are told."""


class PolicyRoles:
    """Buffer, engines and trainer of one policy.

    run: all processes of the run. name: of the policy; that of any but the main one is in the names of its processes.
    host: whose engines serve it, if not its own. engines: those that are there already, and are another's to start.
    """

    def __init__(
        self,
        run: Roles,
        name: str,
        config: Config,
        folder: Path,
        model: str,
        weights_dir: Path,
        host: PolicyRoles | None = None,
        engines: Sequence[ManagedProcess] = (),
    ) -> None:
        self.run = run
        self.name = name
        self.config = config
        self.folder = folder
        self.model = model
        self.weights_dir = weights_dir
        self.prefix = prefixed(name, "")
        self.host = host
        self.placement = run.placement
        self.process_group = run.process_group
        self.credentials = run.credentials
        self._given_engines = engines
        self.engines: list[ManagedProcess] = []
        self.beside: dict[str, ManagedProcess] = {}
        """What the trainer has for itself, by role, where the recipe asks for it."""
        self.added: list[ManagedProcess] = []
        """Those of the engines that were started while the run went on."""
        self.retired: list[str] = []
        """Addresses at which engines take nothing new, latest last."""
        self.buffer_place = buffer_place(config, folder)
        self.buffer: ManagedProcess
        self.trainer: ManagedProcess

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
                nice=self.run.nice,
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
            write_addresses(self._beside_file(role), [self.run.route("trainer", process)])
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
            self.run.supervise(self.buffer_place.front)
        self.run.supervise(self.buffer)
        for process in self.engines:
            self.run.supervise(process, "engine")
        for process in self.beside.values():
            self.run.supervise(process)
        trainer_start_s = self.config.run.start_timeout_s
        self.run.supervisor.watch(
            self.trainer, self._probe, trainer_start_s, ends=True, serving=False, after=self._before_trainer()
        )

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

    def buffer_address(self, caller: str = "") -> str:
        """Return the address under which `caller` reaches the buffer, wherever it moves; "": the launcher."""
        found = self.buffer_place.front or self.buffer
        return self.run.route(caller, found) if caller else found.url

    def engine_addresses(self, caller: str = "") -> list[str]:
        """Return the addresses under which `caller` reaches the engines that serve this policy; "": their own."""
        if self.host is not None:
            return [policy_url(url, self.name) for url in self.host.engine_addresses(caller)]
        return [self.run.route(caller, engine) if caller else engine.url for engine in self.engines]

    def job(self) -> dict[str, Any]:
        """Return what a process must know to join the job."""
        added, retired = self.changed_engines()
        return {
            "config": self.config.model_dump(mode="json"),
            "model": str(Path(self.model).resolve()) if Path(self.model).exists() else self.model,
            "weights_dir": str(self.weights_dir),
            "engines": self.engine_addresses(),
            "envs": [],
            "policies": [],
            "beside": {},
            "moved": self._moved_engines(),
            "added": {"engine": added},
            "retired": retired[-MAX_RETIRED:],
        }

    def changed_engines(self) -> tuple[list[str], list[str]]:
        """Return the addresses of the engines that serve this policy and came, or took their leave, while the run went
        on."""
        if self.host is not None:
            added, retired = self.host.changed_engines()
            return [policy_url(url, self.name) for url in added], [
                policy_url(url, self.name) for url in retired
            ]
        return [one.url for one in self.engines if one in self.added], list(self.retired)

    def start_engine(self) -> ManagedProcess | None:
        """Start one more engine, see `Roles.start_one`."""
        return self.run.start_next(
            lambda index: prefixed(self.name, f"engine-{index}"),
            lambda name: ["serve", "engine", *self._engine_argv()],
            lambda index: self.placement.engine_env(index, self.name),
        )

    def admit_engine(self, process: ManagedProcess) -> None:
        """Have an engine take part that was started so and that serves."""
        self.engines.append(process)
        self.added.append(process)
        # Another process may have had the address before.
        self.retired = [url for url in self.retired if url != process.url]
        self.run.supervise(process, "engine")

    def retire_engine(self, process: ManagedProcess) -> None:
        """Have an engine take no further part; it runs on until it is ended."""
        self.engines.remove(process)
        self.run.supervisor.retire(process)
        self.added = [one for one in self.added if one is not process]
        self.retired += [*process.earlier_urls, process.url]

    def can_leave(self, process: ManagedProcess) -> bool:
        """True for an engine that the policy could do without."""
        return process in self.engines and len(self.engines) > 1

    def leave(self, process: ManagedProcess) -> None:
        """End an engine, with what it is doing, and have it take no further part."""
        self.retire_engine(process)
        self.process_group.forget(process)

    def _moved_engines(self) -> dict[str, str]:
        """Return where the engines that serve this policy are now, by their earlier addresses."""
        if self.host is None:
            return moved(self.engines)
        found = self.host._moved_engines()
        return {policy_url(old, self.name): policy_url(new, self.name) for old, new in found.items()}

    def _start_engines(self) -> list[ManagedProcess]:
        if self.host is not None:
            return []
        if self._given_engines:
            return list(self._given_engines)
        started = []
        for index in range(self.config.engine.count):
            engine = self.process_group.start(
                f"{self.prefix}engine-{index}",
                ["serve", "engine", *self._engine_argv()],
                self.placement.engine_env(index, self.name),
                nice=self.run.nice,
            )
            if self.placement.engines_in_turn:
                self.process_group.wait_ready(engine, self.config.run.start_timeout_s)
            started.append(engine)
        return started

    def _trainer_probe(self) -> HeartbeatProbe:
        endpoints = self.folder / "endpoints"
        heartbeats = [endpoints / f"trainer-{rank}.beat" for rank in range(self.config.train.ranks)]
        return HeartbeatProbe(
            endpoints / "trainer-0.ready", heartbeats, self.steps_done, lambda: self._trainer_ranks
        )

    @property
    def _trainer_ranks(self) -> int:
        """How many ranks the trainer has: fewer than it should while one of its machines is lost."""
        return self.config.train.ranks_each * self.trainer.host.num_machines

    def steps_done(self) -> int:
        """Return how many steps the trainer has recorded."""
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


def moved(processes: Sequence[ManagedProcess]) -> dict[str, str]:
    """Return where processes are now that others may know at another address."""
    return {url: process.url for process in processes for url in process.earlier_urls if url != process.url}
