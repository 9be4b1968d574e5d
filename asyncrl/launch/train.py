"""`asyncrl train`: one run from a recipe to a summary.

buffer, environments, engines start together; workers when those serve; evaluation before
tasks are planned -> workers lease -> the trainer steps and publishes -> the trainer ends
evaluation after on the final weights -> plot, summary -> everything stops in reverse order
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
import urllib.request
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from asyncrl.clients.buffer import BufferClient
from asyncrl.config import Config
from asyncrl.env.registry import load_env
from asyncrl.env.tasks import read_task_file
from asyncrl.errors import ConfigError, UnavailableError
from asyncrl.launch.base_model import cached_base_model
from asyncrl.launch.evaluate import EvalResult, evaluate
from asyncrl.launch.folder import RunFolder
from asyncrl.launch.processes import Child, Family
from asyncrl.launch.summary import build_summary
from asyncrl.train.progress import ProgressLine, plot_rewards, read_metrics
from asyncrl.types import Task

SERVICE_TIMEOUT_S = 60.0
FEED_FACTOR = 4
"""Steps' worth of tasks kept planned ahead when the recipe gives no number of tasks."""


@dataclass(slots=True)
class Roles:
    """The children of a run and their addresses."""

    buffer: Child
    env: Child
    engines: list[Child]
    workers: list[Child]
    trainer: Child | None = None


class TrainRun:
    """Everything one run does, in order."""

    def __init__(self, config: Config, folder: RunFolder) -> None:
        self.config = config
        self.folder = folder
        self.family = Family(folder.path)
        self.model = ""
        self.weights_dir = _weights_directory(folder.path.name)
        self.eval_before: EvalResult | None = None
        self.eval_after: EvalResult | None = None
        self.train_wall_s = 0.0
        self.engine_busy = 0.0

    def run(self) -> dict[str, Any]:
        """Run to the end and return the summary. Raises `AsyncRLError`; nothing is left running either way."""
        start = time.monotonic()
        tasks = plan_tasks(self.config)
        self.folder.write_json("config.json", self.config.model_dump(mode="json"))
        self.model = self._base_model()
        try:
            roles = self._start()
            self.eval_before = self._evaluate(roles, "before")
            self._train(roles, tasks)
            stats = asyncio.run(self._buffer_status(roles))
            self.eval_after = self._evaluate(roles, "after")
        finally:
            self.family.stop()
            shutil.rmtree(self.weights_dir, ignore_errors=True)
        summary = build_summary(self, stats, wall_s=time.monotonic() - start)
        self.folder.write_json("summary.json", summary)
        before = self.eval_before.mean if self.eval_before else None
        plot_rewards(self.folder.path, before, self.eval_after.mean if self.eval_after else None)
        return summary

    def _base_model(self) -> str:
        """Return the model to start from; "sft" means the tiny base model, trained once and cached."""
        path = self.config.model.path
        if path != "sft":
            local = Path(path)
            if (local.is_absolute() or path.startswith(".") or local.exists()) and not (
                local / "config.json"
            ).exists():
                raise ConfigError(
                    f"model.path: {path!r} has no config.json; give a Hugging Face folder or a hub name"
                )
            return path
        return str(cached_base_model(self.config))

    def _start(self) -> Roles:
        config = self.config
        self.weights_dir.mkdir(parents=True)
        folder = str(self.folder.path)
        say("starting buffer, environments and engine(s); the first answer takes about 20 s")
        buffer = self.family.start("buffer", ["serve", "buffer", "--folder", folder])
        env = self.family.start("env", ["serve", "env", "--folder", folder])
        engines = [
            self.family.start(f"engine-{i}", ["serve", "engine", "--folder", folder, "--model", self.model])
            for i in range(config.engine.count)
        ]
        for child in (buffer, env):
            self.family.wait_ready(child, SERVICE_TIMEOUT_S)
        for child in engines:
            self.family.wait_ready(child, config.engine.start_timeout_s)
        roles = Roles(buffer, env, engines, [])
        workers = [
            self.family.start(f"rollout-{i}", self._worker_argv(roles)) for i in range(config.rollout.workers)
        ]
        roles.workers = workers
        roles.trainer = self._start_trainer(roles)
        for child in workers:
            self.family.wait_ready(child, SERVICE_TIMEOUT_S)
        return roles

    def _worker_argv(self, roles: Roles) -> list[str]:
        return [
            *("serve", "rollout", "--folder", str(self.folder.path), "--model", self.model),
            *("--buffer", roles.buffer.url, "--env", roles.env.url),
            *("--engines", *(engine.url for engine in roles.engines)),
        ]

    def _start_trainer(self, roles: Roles) -> Child:
        argv = [
            *("serve", "trainer", "--folder", str(self.folder.path), "--model", self.model),
            *("--buffer", roles.buffer.url, "--weights-dir", str(self.weights_dir)),
            *("--engines", *(engine.url for engine in roles.engines)),
        ]
        return self.family.start("trainer", argv, ready=False)

    def _evaluate(self, roles: Roles, when: str) -> EvalResult | None:
        if not self.config.eval.tasks:
            return None
        config = self.config
        result = evaluate(
            roles.workers[0].url, config, config.env.name, config.eval.tasks, config.eval.samples
        )
        say(f"held-out {when} training: {describe(result)}")
        return result

    def _train(self, roles: Roles, tasks: TaskPlan) -> None:
        """Feed tasks and show progress until the trainer ends."""
        assert roles.trainer is not None
        self._wait_for_trainer(roles.trainer)
        start = time.monotonic()
        busy = self._engine_busy_s(roles)
        asyncio.run(self._watch(roles, tasks))
        self.train_wall_s = time.monotonic() - start
        self.engine_busy = (
            (self._engine_busy_s(roles) - busy) / max(self.train_wall_s, 1e-9) / len(roles.engines)
        )
        self.family.children = [c for c in self.family.children if c is not roles.trainer]

    def _wait_for_trainer(self, trainer: Child) -> None:
        ready = self.folder.path / "endpoints" / "trainer-0.ready"
        deadline = time.monotonic() + self.config.engine.start_timeout_s
        while not ready.exists():
            self.family.check()
            if not trainer.alive() or time.monotonic() > deadline:
                raise UnavailableError(f"the trainer did not start; see {trainer.log}\n{trainer.tail()}")
            time.sleep(0.1)

    async def _watch(self, roles: Roles, tasks: TaskPlan) -> None:
        assert roles.trainer is not None
        progress, shown = ProgressLine(self.config.train.num_steps), 0
        client = BufferClient(roles.buffer.url)
        try:
            while roles.trainer.alive():
                self.family.check()
                await tasks.feed(client)
                for record in read_metrics(self.folder.path)[shown:]:
                    progress.show(record["step"], record)
                    shown += 1
                await asyncio.sleep(0.25)
            for record in read_metrics(self.folder.path)[shown:]:
                progress.show(record["step"], record)
        finally:
            await client.close()
        if roles.trainer.process.returncode != 0:
            self.family.check()

    def _engine_busy_s(self, roles: Roles) -> float:
        total = 0.0
        for worker in roles.workers:
            with urllib.request.urlopen(f"{worker.url}/v1/status", timeout=10) as reply:
                total += json.loads(reply.read())["engine_busy_s"]
        return total

    async def _buffer_status(self, roles: Roles) -> dict[str, Any]:
        client = BufferClient(roles.buffer.url)
        try:
            return await client.status()
        finally:
            await client.close()


class TaskPlan:
    """The tasks of a run, fed to the buffer ahead of need; endless unless the recipe counts them."""

    def __init__(self, tasks: Any, total: int, chunk: int) -> None:
        self._tasks = tasks
        self._left = total
        self._endless = total == 0
        self._chunk = chunk
        self._closed = False

    async def feed(self, client: BufferClient) -> None:
        """Keep enough tasks pending; close the plan after the last one."""
        if self._closed:
            return
        status = await client.status()
        if status["pending"] >= self._chunk:
            return
        wanted = self._chunk if self._endless else min(self._chunk, self._left)
        tasks = list(islice(self._tasks, wanted))
        if tasks:
            await client.add_tasks(tasks)
        self._left -= len(tasks)
        if len(tasks) < wanted or (not self._endless and self._left <= 0):
            await client.close_plan()
            self._closed = True


def plan_tasks(config: Config) -> TaskPlan:
    """Return the run's tasks, from the task file or the environment. Raises `ConfigError`, `InputError`."""
    tasks: Any
    if config.env.task_file:
        tasks = iter(read_task_file(config.env.task_file, config.env.name))
    else:
        tasks = _numbered(load_env(config.env.name).tasks("train", config.env.name, **config.env.config))
    return TaskPlan(tasks, config.env.num_tasks, FEED_FACTOR * config.buffer.groups_per_step)


def _numbered(tasks: Any) -> Any:
    """Yield tasks whose ids sort in their own order."""
    for number, task in enumerate(tasks):
        yield Task(
            id=f"{number:08d}-{task.id}", env=task.env, seed=task.seed, split=task.split, data=task.data
        )


def describe(result: EvalResult) -> str:
    """Return one line about an evaluation."""
    line = f"reward {result.mean:.3f} [{result.ci_low:.3f}, {result.ci_high:.3f}] over {result.tasks} tasks"
    if result.success is not None:
        line += f", success {result.success:.3f}"
    if result.failed:
        line += f", failed episodes {result.failed}"
    return line


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _weights_directory(run_name: str) -> Path:
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    return base / f"asyncrl-{os.getpid()}-{run_name}"
