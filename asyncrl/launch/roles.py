"""The processes of a training run: which there are, how each is started, and how it is heard."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.endpoint import stop_file, tell_addresses
from asyncrl.launch.health_probes import FileSigns, HttpSigns
from asyncrl.launch.process_group import START_TIMEOUT_S, Child, Family, behind_trainer
from asyncrl.launch.supervise import Supervisor
from asyncrl.run.metrics import read_metrics
from asyncrl.run.model_folder import check_model, remember_model
from asyncrl.services.buffer.client import BufferClientSync
from asyncrl.services.engine.client import policy_url
from asyncrl.weights.folders import policy_weights

log = logging.getLogger("asyncrl.launch")


class PolicyRoles:
    """The processes that one policy has for itself: buffer, engines and trainer.

    name: a further policy's; it is in the names of its processes. host: whose engines serve it, if not its own.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        model: str,
        weights_dir: Path,
        family: Family,
        name: str = "",
        host: PolicyRoles | None = None,
    ) -> None:
        self.config = config
        self.folder = folder
        self.model = model
        self.weights_dir = weights_dir
        self.family = family
        self.name = name
        self.prefix = f"{name}-" if name else ""
        self.host = host
        self.credentials = family.credentials
        self.nice = behind_trainer()
        """Of engines, environments and workers."""
        self.engines: list[Child] = []
        self.buffer: Child
        self.trainer: Child

    def start_services(self) -> None:
        """Start buffer and engines; `wait_engines` waits until these serve. Raises `ConfigError`."""
        check_model(self.folder, self.model)
        remember_model(self.folder, self.model)
        self.buffer = self.family.start(
            f"{self.prefix}buffer", ["serve", "buffer", *self._folder(), "--model", self.model]
        )
        self.engines = self._start_engines()

    def start_trainer(self) -> None:
        """Start the trainer, which loads its model while others are waited for; `wait_engines` tells it of engines."""
        self.family.wait_ready(self.buffer, START_TIMEOUT_S)
        self._signs = self._trainer_signs()
        self._signs.forget()
        for file in (self._trainers_engines, stop_file(self.folder)):
            file.unlink(missing_ok=True)
        self.trainer = self.family.start(f"{self.prefix}trainer", self._trainer_argv(), ready=False)

    def wait_engines(self) -> None:
        """Call when the trainer has been started. Raises `UnavailableError`, `DeadlineError`."""
        for child in self.engines:
            self.family.wait_ready(child, self.config.run.start_timeout_s)
        tell_addresses(self._trainers_engines, self.engine_addresses("trainer"))

    def readmit(self, workers: Sequence[str]) -> None:
        """Let workers that an earlier life of the run has quarantined contribute again: these are new ones."""
        buffer = BufferClientSync(self.buffer.url, self.credentials.bearer("buffer"))
        try:
            for name in workers:
                if was := buffer.readmit(name):
                    log.warning("%s had been quarantined (%s); it may contribute again", name, was)
        finally:
            buffer.close()

    def watch(self, supervisor: Supervisor) -> None:
        """Have them watched."""
        supervisor.watch(self.buffer, HttpSigns(self.buffer, "/healthz"), START_TIMEOUT_S)
        for child in self.engines:
            signs = HttpSigns(child, "/asyncrl/v1/state", self.credentials.bearer("engine"))
            supervisor.watch(child, signs, self.config.run.start_timeout_s)
        trainer_start_s = self.config.run.start_timeout_s
        supervisor.watch(self.trainer, self._signs, trainer_start_s, ends=True, serving=False)

    def trainer_ready(self) -> bool:
        """True once the trainer has loaded its model."""
        return (self.folder / "endpoints" / "trainer-0.ready").exists()

    def ask_trainer_to_stop(self) -> bool:
        """Have the trainer end with a checkpoint after the step it is in; False where there is none at work."""
        started = getattr(self, "trainer", None)
        if started is None or not started.alive() or not self.trainer_ready():
            return False
        stop_file(self.folder).touch()
        return True

    def route(self, caller: str, callee: Child) -> str:
        """Return the address under which `caller` reaches `callee`."""
        return callee.url

    def engine_addresses(self, caller: str = "") -> list[str]:
        """Return the addresses under which `caller` reaches the engines that serve this policy; "": their own."""
        if self.host is not None:
            return [policy_url(url, self.name) for url in self.host.engine_addresses(caller)]
        return [self.route(caller, engine) if caller else engine.url for engine in self.engines]

    def job(self) -> dict[str, Any]:
        """Return what processes must know that want to join."""
        return {
            "config": self.config.model_dump(mode="json"),
            "model": str(Path(self.model).resolve()) if Path(self.model).exists() else self.model,
            "weights_dir": str(self.weights_dir),
            "engines": self.engine_addresses(),
            "envs": [],
            "policies": [],
        }

    def _start_engines(self) -> list[Child]:
        if self.host is not None:
            return []
        return [
            self.family.start(
                f"{self.prefix}engine-{i}", ["serve", "engine", *self._engine_argv()], nice=self.nice
            )
            for i in range(self.config.engine.count)
        ]

    def _trainer_signs(self) -> FileSigns:
        endpoints = self.folder / "endpoints"
        beats = [endpoints / f"trainer-{rank}.beat" for rank in range(self.config.train.ranks)]
        return FileSigns(endpoints / "trainer-0.ready", beats, self._steps_done)

    def _steps_done(self) -> int:
        return max((record["step"] for record in read_metrics(self.folder)), default=0)

    @property
    def _trainers_engines(self) -> Path:
        return self.folder / "endpoints" / "trainer-engines.json"

    def _folder(self) -> list[str]:
        return ["--folder", str(self.folder)]

    def _engine_argv(self) -> list[str]:
        return [*self._folder(), "--model", self.model, "--weights-dir", str(self.weights_dir)]

    def _trainer_argv(self) -> list[str]:
        return [
            *("serve", "trainer", *self._folder(), "--model", self.model),
            *("--buffer", self.route("trainer", self.buffer), "--weights-dir", str(self.weights_dir)),
            *("--engines", f"@{self._trainers_engines}"),
        ]


class Roles(PolicyRoles):
    """All processes: those of the main policy, of further ones, and those they share (environments, workers).

    Starts buffers, environments, engines and trainers together, workers when those serve.
    """

    def __init__(self, config: Config, folder: Path, model: str, weights_dir: Path) -> None:
        super().__init__(config, folder, model, weights_dir, Family(folder))
        self.supervisor = Supervisor(
            self.family,
            folder / "restarts.jsonl",
            config.run.silence_timeout_s,
            self._check_models,
            self._progress,
        )
        self.finished_groups = 0
        """Groups the main policy's buffer holds as finished, as of its newest counts."""
        self.policies: dict[str, PolicyRoles] = {}
        """Further policies by name."""
        self.workers: list[Child] = []
        self.env: Child

    def add_policy(self, name: str, config: Config, folder: Path, model: str) -> None:
        """Have the processes of a further policy started, too. Call before `start`."""
        weights_dir = Path(policy_weights(str(self.weights_dir), name))
        host = self if self.config.shares_engines(name) else None
        self.policies[name] = PolicyRoles(config, folder, model, weights_dir, self.family, name, host)

    def start(self) -> None:
        """Start everything and have it watched. Raises `UnavailableError`, `DeadlineError`, `ConfigError`."""
        family, policies = self.family, [self, *self.policies.values()]
        for policy in policies:
            policy.start_services()
        self.env = family.start("env", ["serve", "env", *self._folder()], nice=self.nice)
        for policy in policies:
            policy.start_trainer()
        family.wait_ready(self.env, START_TIMEOUT_S)
        for policy in policies:
            policy.wait_engines()
        names = [f"rollout-{i}" for i in range(self.config.rollout.workers)]
        for policy in policies:
            policy.readmit(names)
        self.workers = [family.start(name, self._worker_argv(name), nice=self.nice) for name in names]
        for child in self.workers:
            family.wait_ready(child, START_TIMEOUT_S)
        for child in (self.env, *self.workers):
            self.supervisor.watch(child, HttpSigns(child, "/healthz"), START_TIMEOUT_S)
        for policy in policies:
            policy.watch(self.supervisor)

    def job(self) -> dict[str, Any]:
        return super().job() | {"envs": [self.env.url], "policies": self._policy_addresses()}

    def _progress(self) -> int:
        """How far the run has come: the steps of all policies and the groups that were finished."""
        return self.finished_groups + sum(p._steps_done() for p in (self, *self.policies.values()))

    def _check_models(self) -> None:
        for policy in (self, *self.policies.values()):
            check_model(policy.folder, policy.model)

    def _policy_addresses(self) -> list[str]:
        """Return where further policies are, as `asyncrl serve rollout --policy` takes it."""
        return [
            f"{name}={','.join([self.route('rollout', policy.buffer), *policy.engine_addresses('rollout')])}"
            for name, policy in self.policies.items()
        ]

    def _worker_argv(self, name: str) -> list[str]:
        policies = [word for where in self._policy_addresses() for word in ("--policy", where)]
        return [
            *("serve", "rollout", *self._folder(), "--model", self.model, "--name", name, *policies),
            *("--buffer", self.route("rollout", self.buffer), "--env", self.route("rollout", self.env)),
            *("--engines", *self.engine_addresses("rollout")),
        ]
