"""The processes of a training run: those of its policies, and those that these share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asyncrl.config import Config
from asyncrl.gpus import found_gpus
from asyncrl.launch.machines.placement import Placement, env_names, plan
from asyncrl.launch.processes.health_probes import EngineProbe, HttpProbe
from asyncrl.launch.processes.process_group import ManagedProcess, Placed, ProcessGroup, generation_nice
from asyncrl.launch.processes.supervise import Supervisor
from asyncrl.launch.roles.policy_roles import MAX_RETIRED, PolicyRoles, moved
from asyncrl.run.model_folder import check_model
from asyncrl.services.command import with_workers
from asyncrl.types import MAIN_POLICY
from asyncrl.weights.folders import policy_weights


class Roles:
    """All processes: those of the policies, the main one first, and those that they share (environments, workers).

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
        engines: Sequence[ManagedProcess] = (),
    ) -> None:
        """config, folder, model, weights_dir: of the main policy. engines: its own, where they are there already."""
        self.config = config
        self.folder = folder
        self.process_group = process_group or ProcessGroup(folder)
        self.credentials = self.process_group.credentials
        self.placement = placement or plan(config, found_gpus())
        self.nice = generation_nice()
        """The niceness of engines, environments and workers."""
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
        self.main = PolicyRoles(self, MAIN_POLICY, config, folder, model, weights_dir, engines=engines)
        self.policies: dict[str, PolicyRoles] = {MAIN_POLICY: self.main}
        """By name, the main one first."""
        self.workers: list[ManagedProcess] = []
        self.beside_workers: dict[str, ManagedProcess] = {}
        """What the workers have for themselves, by role, where the recipe asks for it."""
        self.envs: list[ManagedProcess] = []
        self.added_envs: list[ManagedProcess] = []
        """Those of the environments that were started while the run went on."""
        self.retired: list[str] = []
        """Addresses at which environments take nothing new, latest last."""

    def name_of_engine(self, url: str) -> str:
        """Return what the engine at an address, as a worker knows it, is called; "" for one that is starting again."""
        server = url.partition("/policies/")[0]
        for engine in self.every_engine:
            if server in (engine.url, *engine.earlier_urls, self.route("rollout", engine)):
                return engine.name if self.supervisor.serves(engine) else ""
        return f"the engine at {server}"

    def add_policy(self, name: str, config: Config, folder: Path, model: str) -> None:
        """Add the processes of a further policy. Call before `start`."""
        weights_dir = Path(policy_weights(str(self.main.weights_dir), name))
        host = self.main if self.config.shares_engines(name) else None
        self.policies[name] = PolicyRoles(self, name, config, folder, model, weights_dir, host)

    def start(self) -> None:
        """Start everything and have it supervised. Raises `UnavailableError`, `DeadlineError`, `ConfigError`."""
        process_group, policies = self.process_group, self.policies.values()
        start_s = self.config.run.start_timeout_s
        for policy in policies:
            policy.start_services()
        self.envs = [
            process_group.start(name, self._env_argv(name), nice=self.nice) for name in env_names(self.config)
        ]
        self.beside_workers = start_beside_workers(
            process_group, self.config, self.folder, self.placement, self.nice, self.main.model
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
            self.supervise(process)
        for policy in policies:
            policy.watch()

    def supervise(self, process: ManagedProcess, role: str = "") -> None:
        """Have a process supervised. role: "engine" for an engine."""
        engine = EngineProbe(process, self.credentials.bearer("engine")) if role == "engine" else None
        probe = engine or HttpProbe(process, "/healthz")
        self.supervisor.watch(process, probe, self.config.run.start_timeout_s)

    def route(self, caller: str, callee: ManagedProcess) -> str:
        """Return the address under which `caller` reaches `callee`."""
        return callee.url

    def job(self) -> dict[str, Any]:
        """Return what a process must know to join the job of the main policy."""
        engines, retired = self.main.changed_engines()
        return self.main.job() | {
            "envs": [process.url for process in self.envs],
            "policies": self._policy_addresses(),
            "beside": {role: self.route("rollout", one) for role, one in self.beside_workers.items()},
            "moved": moved([*self.main.engines, *self.envs]),
            "added": {"engine": engines, "env": [one.url for one in self.envs if one in self.added_envs]},
            "retired": [*retired, *self.retired][-MAX_RETIRED:],
        }

    def of_role(self, role: str) -> list[ManagedProcess]:
        """Return the processes of a role that take part: "rollout", "env", or "engine" for those of the main policy."""
        return {"rollout": self.workers, "env": self.envs, "engine": self.main.engines}[role]

    def start_one(self, role: str) -> ManagedProcess | None:
        """Start one more process of a role, which takes part once it was `admit`ted; None where no machine has room.

        Call from the main thread. Raises `AsyncRLError` where it cannot be started.
        """
        if role == "engine":
            return self.main.start_engine()
        if role == "env":
            return self.start_next(lambda index: env_names(self.config, index + 1)[index], self._env_argv)
        no_gpu = self.placement.service_env()
        return self.start_next(lambda index: f"rollout-{index}", self._worker_argv, also=no_gpu)

    def start_next(
        self,
        name_of: Callable[[int], str],
        argv_of: Callable[[str], list[str]],
        gpus_of: Callable[[int], Mapping[str, str]] = lambda index: {},
        also: Mapping[str, str] = MappingProxyType({}),
    ) -> ManagedProcess | None:
        """Start a process by the first name that none has, where there is room for it; None where there is none.

        gpus_of: variables that give it GPUs of this machine, by its number; `also`: further ones.
        """
        known = {process.name for process in self.process_group.processes}
        index = 0
        while (name := name_of(index)) in known:
            index += 1
        group = self.process_group
        found: Placed | None = (group.host, gpus_of(index)) if group.room is None else group.room(name)
        if found is None:
            return None
        host, env = found
        return group.start(name, argv_of(name), {**env, **also}, nice=self.nice, host=host)

    def admit(self, role: str, process: ManagedProcess) -> None:
        """Have a process take part that `start_one` has started and that serves."""
        if role == "engine":
            self.main.admit_engine(process)
        else:
            self.of_role(role).append(process)
            if role == "env":
                self.added_envs.append(process)
            self.supervise(process, role)
        # Another process may have had the address before.
        self.retired = [url for url in self.retired if url != process.url]

    def retire(self, role: str, process: ManagedProcess | None = None) -> ManagedProcess:
        """Have a process of a role, the newest unless one is given, take no further part; it runs on until it is ended.
        Return it."""
        process = process or self.of_role(role)[-1]
        if role == "engine":
            self.main.retire_engine(process)
            return process
        self.of_role(role).remove(process)
        self.supervisor.retire(process)
        if role == "env":
            self.added_envs = [one for one in self.added_envs if one is not process]
            self.retired += [*process.earlier_urls, process.url]
        return process

    @property
    def further(self) -> dict[str, PolicyRoles]:
        """The policies besides the main one, by name."""
        return {name: policy for name, policy in self.policies.items() if policy is not self.main}

    @property
    def every_engine(self) -> list[ManagedProcess]:
        """Those of all policies."""
        return [engine for policy in self.policies.values() for engine in policy.engines]

    def _progress(self) -> int:
        """Return how far the run has come: the steps of all policies and the groups that were finished."""
        return self.finished_groups + sum(policy.steps_done() for policy in self.policies.values())

    def _check_models(self) -> None:
        for policy in self.policies.values():
            check_model(policy.folder, policy.model)

    def _policy_addresses(self) -> list[str]:
        """Return the addresses of further policies, as `asyncrl serve rollout --policy` takes them."""
        return [
            f"{name}={','.join([policy.buffer_address('rollout'), *policy.engine_addresses('rollout')])}"
            for name, policy in self.further.items()
        ]

    def _env_argv(self, name: str) -> list[str]:
        return ["serve", "env", "--folder", str(self.folder)]

    def _worker_argv(self, name: str) -> list[str]:
        policies = [word for where in self._policy_addresses() for word in ("--policy", where)]
        return [
            *(
                "serve",
                "rollout",
                "--folder",
                str(self.folder),
                "--model",
                self.main.model,
                "--name",
                name,
                *policies,
            ),
            *("--buffer", self.main.buffer_address("rollout")),
            *(("--env", *(self.route("rollout", process) for process in self.envs)) if self.envs else ()),
            *("--engines", *self.main.engine_addresses("rollout")),
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
