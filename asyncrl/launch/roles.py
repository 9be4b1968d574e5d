"""The processes of a training run: which there are, how each is started, and how it is heard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.launch.model_folder import check_model, remember_model
from asyncrl.launch.processes import Child, Family
from asyncrl.launch.signs import FileSigns, HttpSigns
from asyncrl.launch.supervise import Supervisor
from asyncrl.train.progress import read_metrics

SERVICE_TIMEOUT_S = 60.0


class Roles:
    """Starts buffer, environments and engines together, workers and trainer when those serve."""

    def __init__(self, config: Config, folder: Path, model: str, weights_dir: Path) -> None:
        self.config = config
        self.folder = folder
        self.model = model
        self.weights_dir = weights_dir
        self.token = os.environ.get("ASYNCRL_TOKEN", "")
        self.family = Family(folder)
        self.supervisor = Supervisor(
            self.family,
            folder / "restarts.jsonl",
            config.run.silence_timeout_s,
            lambda: check_model(folder, model),
        )
        self.engines: list[Child] = []
        self.workers: list[Child] = []
        self.buffer: Child
        self.env: Child
        self.trainer: Child

    def start(self) -> None:
        """Start everything and have it watched. Raises `UnavailableError`, `DeadlineError`, `ConfigError`."""
        config, family = self.config, self.family
        check_model(self.folder, self.model)
        remember_model(self.folder, self.model)
        self.buffer = family.start("buffer", ["serve", "buffer", *self._folder()])
        self.env = family.start("env", ["serve", "env", *self._folder()])
        self.engines = self._start_engines()
        for child in (self.buffer, self.env):
            family.wait_ready(child, SERVICE_TIMEOUT_S)
        for child in self.engines:
            family.wait_ready(child, config.engine.start_timeout_s)
        self.workers = [
            family.start(f"rollout-{i}", self._worker_argv(f"rollout-{i}"))
            for i in range(config.rollout.workers)
        ]
        trainer_signs = self._trainer_signs()
        trainer_signs.forget()
        self.trainer = family.start("trainer", self._trainer_argv(), ready=False)
        for child in self.workers:
            family.wait_ready(child, SERVICE_TIMEOUT_S)
        self._watch(trainer_signs)

    def _start_engines(self) -> list[Child]:
        return [
            self.family.start(f"engine-{i}", ["serve", "engine", *self._engine_argv()])
            for i in range(self.config.engine.count)
        ]

    def trainer_ready(self) -> bool:
        """True once the trainer has loaded its model."""
        return (self.folder / "endpoints" / "trainer-0.ready").exists()

    def job(self) -> dict[str, Any]:
        """Return what processes must know that want to join."""
        return {
            "config": self.config.model_dump(mode="json"),
            "model": str(Path(self.model).resolve()) if Path(self.model).exists() else self.model,
            "weights_dir": str(self.weights_dir),
            "engines": [engine.url for engine in self.engines],
            "envs": [self.env.url],
        }

    def route(self, caller: str, callee: Child) -> str:
        """Return the address under which `caller` reaches `callee`."""
        return callee.url

    def _watch(self, trainer_signs: FileSigns) -> None:
        watch = self.supervisor.watch
        for child in (self.buffer, self.env, *self.workers):
            watch(child, HttpSigns(child, "/healthz"), SERVICE_TIMEOUT_S)
        start_s = self.config.engine.start_timeout_s
        for child in self.engines:
            watch(child, HttpSigns(child, "/asyncrl/v1/state", self.token), start_s)
        watch(self.trainer, trainer_signs, start_s, ends=True, serving=False)

    def _trainer_signs(self) -> FileSigns:
        endpoints = self.folder / "endpoints"
        beats = [endpoints / f"trainer-{rank}.beat" for rank in range(self.config.train.ranks)]
        return FileSigns(endpoints / "trainer-0.ready", beats, self._steps_done)

    def _steps_done(self) -> int:
        return max((record["step"] for record in read_metrics(self.folder)), default=0)

    def _folder(self) -> list[str]:
        return ["--folder", str(self.folder)]

    def _engine_argv(self) -> list[str]:
        return [*self._folder(), "--model", self.model, "--weights-dir", str(self.weights_dir)]

    def _worker_argv(self, name: str) -> list[str]:
        return [
            *("serve", "rollout", *self._folder(), "--model", self.model, "--name", name),
            *("--buffer", self.route("rollout", self.buffer), "--env", self.route("rollout", self.env)),
            *("--engines", *(self.route("rollout", engine) for engine in self.engines)),
        ]

    def _trainer_argv(self) -> list[str]:
        return [
            *("serve", "trainer", *self._folder(), "--model", self.model),
            *("--buffer", self.route("trainer", self.buffer), "--weights-dir", str(self.weights_dir)),
            *("--engines", *(self.route("trainer", engine) for engine in self.engines)),
        ]
