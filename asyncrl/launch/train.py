"""`asyncrl train`: one run from a recipe to a summary.

buffer, environments, engines start together; workers and trainer when those serve; evaluation before
tasks are planned -> workers lease -> the trainer steps and publishes -> the trainer ends
further policies' trainers end, too -> evaluation after on the final weights -> plot, summary
everything stops in reverse order

All the while dead processes are started again (`launch.supervise`). A run whose launcher died goes on with
`asyncrl train --resume runs/NAME`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from asyncrl.config import Config
from asyncrl.credentials import authorization
from asyncrl.errors import DeadlineError, StopError
from asyncrl.launch.base_model import cached_base_model
from asyncrl.launch.evaluate import EvalResult, evaluate_with
from asyncrl.launch.failures import USABLE, FailureReport
from asyncrl.launch.periodic_evaluation import EvalsBeside
from asyncrl.launch.policies import PolicyPlan, check_same_tokenizer, policy_folder
from asyncrl.launch.quarantine import QuarantineReport
from asyncrl.launch.roles import PolicyRoles, Roles
from asyncrl.launch.summary import build_summary
from asyncrl.launch.tasks import TaskPlan, plan_tasks
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.folder import RunFolder, private_folder
from asyncrl.run.lives import Lives, begin
from asyncrl.run.metrics import MetricsTail, ProgressLine, plot_rewards, read_metrics
from asyncrl.services.buffer.client import BufferClient

TICK_S = 0.25
DESCRIBE_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
SAVE_S = 120.0
"""How long an interrupted run waits for its last checkpoint."""
HURRY_S = 0.5


class TrainRun:
    """Everything one run does, in order."""

    def __init__(self, config: Config, folder: RunFolder, resume: bool = False) -> None:
        self.config = config
        self.folder = folder
        self.resume = resume
        self.weights_dir = _weights_directory(folder.path)
        self.roles: Roles
        self.eval_before: EvalResult | None = None
        self.eval_after: EvalResult | None = None
        self.evals: EvalsBeside
        self.policies: dict[str, PolicyPlan] = {}
        self.policy_stats: dict[str, dict[str, Any]] = {}
        """Last counts of the further policies' buffers."""
        self.lives = Lives(folder, resume)
        self._hurried = False

    def run(self) -> dict[str, Any]:
        """Run to the end and return the summary. Raises `AsyncRLError`; nothing is left running either way."""
        tasks = plan_tasks(self.config)
        begin(self.folder.path)
        self.folder.write_json("config.json", self.config.model_dump(mode="json"))
        self.roles = self.make_roles(base_model(self.config))
        self._add_policies()
        self.evals = EvalsBeside(self.config, self.folder.path, self.roles.family)
        try:
            self._clear_weights()
            for roles in (self.roles, *self.roles.policies.values()):
                private_folder(roles.weights_dir)
            say("starting buffer, environments and engine(s); the first answer takes about 20 s")
            self.roles.start()
            stats = asyncio.run(self.roles.supervisor.beside(self._phases(tasks)))
        except KeyboardInterrupt:
            self._save_last()
            raise
        finally:
            self._stop()
        summary = build_summary(self, stats)
        self.folder.write_json("summary.json", summary)
        before = self.eval_before.mean if self.eval_before else None
        plot_rewards(self.folder.path, before, self.eval_after.mean if self.eval_after else None)
        for policy in self.roles.policies.values():
            plot_rewards(policy.folder, None, None)
        return summary

    def _save_last(self) -> None:
        """Have the trainers end with a checkpoint, unless that takes too long or nobody wants to wait."""
        asked = [r for r in (self.roles, *self.roles.policies.values()) if r.ask_trainer_to_stop()]
        if not asked:
            return
        say(f"interrupted: saving a last checkpoint, for {SAVE_S:g} s at most; Ctrl-C again stops at once")
        deadline = time.monotonic() + SAVE_S
        try:
            while any(roles.trainer.alive() for roles in asked) and time.monotonic() < deadline:
                time.sleep(TICK_S)
        except KeyboardInterrupt:
            self._hurried = True
        for roles in asked:
            kept = complete_checkpoints(roles.folder / "checkpoints")
            newest = f"the newest checkpoint is {kept[0][1]}" if kept else "there is no checkpoint yet"
            say(newest + (f"; {roles.trainer.name} has saved no other" if roles.trainer.alive() else ""))

    def _stop(self) -> None:
        """End every process, at once when interrupted again."""
        try:
            self.roles.family.stop(grace_s=HURRY_S if self._hurried else None)
        except KeyboardInterrupt:
            self.roles.family.stop(grace_s=HURRY_S)
            raise
        finally:
            self._clear_weights()

    def make_roles(self, model: str) -> Roles:
        """Return what starts the processes."""
        return Roles(self.config, self.folder.path, model, self.weights_dir)

    def _add_policies(self) -> None:
        for name in self.config.policies:
            config = self.config.policy(name)
            model = base_model(config)
            check_same_tokenizer(self.roles.model, model, name)
            self.roles.add_policy(name, config, policy_folder(self.folder.path, name, config), model)

    async def _phases(self, tasks: TaskPlan) -> dict[str, Any]:
        """Evaluate, train, evaluate; return the buffer's last counts."""
        self.eval_before = await self._evaluated_before()
        for roles in (self.roles, *self.roles.policies.values()):
            await self._wait_for_trainer(roles)
        client = BufferClient(self.roles.buffer.url, self.roles.credentials.bearer("buffer"))
        self.policies = {
            name: PolicyPlan(roles, self.roles.supervisor) for name, roles in self.roles.policies.items()
        }
        try:
            await self._train(client, tasks)
            stats = await client.status()
            for name, plan in self.policies.items():
                self.policy_stats[name] = await plan.finish()
        finally:
            await client.close()
            for plan in self.policies.values():
                await plan.close()
        show_eval(await self.evals.finish(self._eval_timeout_s()))
        self.eval_after = await self._evaluate("after")
        return stats

    def _eval_timeout_s(self) -> float:
        """How long an evaluation that has begun just before the end may take: to start its engine, and to play."""
        return self.config.run.start_timeout_s + self.config.rollout.episode_timeout_s

    async def _evaluated_before(self) -> EvalResult | None:
        """Return the evaluation of the base model, which a resumed run has kept."""
        kept = self.folder.path / "eval_before.json"
        if self.resume and (kept.exists() or read_metrics(self.folder.path)):
            return EvalResult(**json.loads(kept.read_text())) if kept.exists() else None
        result = await self._evaluate("before")
        if result is not None:
            self.folder.write_json(kept.name, result.to_json())
        return result

    async def _evaluate(self, when: str) -> EvalResult | None:
        config = self.config
        if not config.eval.tasks:
            return None
        result = await evaluate_with(
            self.roles.workers[0].url, config, config.env.name, config.eval.tasks, 1,
            self.roles.credentials.bearer("rollout"), retry_s=config.run.start_timeout_s,
        )  # fmt: skip
        say(f"held-out {when} training: {describe(result)}")
        return result

    async def _wait_for_trainer(self, roles: PolicyRoles) -> None:
        timeout_s = self.config.run.start_timeout_s
        deadline = time.monotonic() + timeout_s
        while not roles.trainer_ready():
            if time.monotonic() > deadline:
                trainer = roles.trainer
                raise DeadlineError(
                    f"{trainer.name} did not start within run.start_timeout_s={timeout_s:g}; see {trainer.log}\n"
                    f"{trainer.tail()}"
                )
            await asyncio.sleep(TICK_S)

    async def _train(self, client: BufferClient, tasks: TaskPlan) -> None:
        """Feed tasks and show progress until the trainer ends."""
        self.lives.train()
        progress, metrics = ProgressLine(self.config.train.num_steps), MetricsTail(self.folder.path)
        done, described, looked = False, float("-inf"), float("-inf")
        failures = FailureReport(self.config.buffer.groups_per_step)
        told = ""
        quarantines = QuarantineReport([worker.name for worker in self.roles.workers])
        while not done:
            done = self.roles.supervisor.done(self.roles.trainer)
            if done or time.monotonic() - looked > LOOK_EVERY_S:
                stats = await client.status()
                self._look(stats, failures)
                if not done:
                    await self._look_for_workers(stats, quarantines)
                looked = time.monotonic()
            if not done:
                await tasks.feed(client)
                for plan in self.policies.values():
                    await plan.tick()
                if time.monotonic() - described > DESCRIBE_EVERY_S:
                    # Again and again, since a buffer that started anew has forgotten it.
                    await client.describe(self.roles.job())
                    for plan in self.policies.values():
                        await plan.describe()
                    await self._keep_times()
                    described = time.monotonic()
            for record in metrics.read():
                progress.show(record["step"], record)
                told = self._tell_checkpoint(record, told)
            show_eval(self.evals.tick())
            await asyncio.sleep(TICK_S)
        await self._keep_times()
        self.lives.trained()

    def _tell_checkpoint(self, record: dict[str, Any], told: str) -> str:
        """Say once that checkpoints cannot be written; return the error that was said."""
        error = str(record.get("checkpoint/error", ""))
        if error and error != told:
            say(f"a checkpoint could not be written; the newest one stays: {error}")
        return error

    def _look(self, stats: dict[str, Any], failures: FailureReport) -> None:
        """Say what the buffer's counts tell. Raises `StopError` when the run cannot come to anything."""
        self.roles.finished_groups = sum(stats[state] for state in USABLE)
        for line in failures.news(stats):
            say(line)
        if reason := failures.hopeless(stats):
            raise StopError(f"{reason}\nsee the logs of env and rollout-0 in {self.folder.path / 'logs'}")

    async def _look_for_workers(self, stats: dict[str, Any], quarantines: QuarantineReport) -> None:
        """Say which workers are quarantined, by any policy. Raises `StopError` when nobody is left to work."""
        reasons = dict(stats["quarantine_reasons"])
        for plan in self.policies.values():
            reasons |= await plan.quarantined()
        for line in quarantines.news(reasons):
            say(line)
        if reason := quarantines.hopeless(reasons, stats, time.monotonic()):
            raise StopError(reason)

    async def _keep_times(self) -> None:
        """Keep how long the run has taken, and in how much of that engines had work as the workers have seen it."""

        def ask(url: str) -> float | None:
            request = urllib.request.Request(
                f"{url}/v1/status", headers=authorization(self.roles.credentials.bearer("rollout"))
            )
            with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10) as reply:
                return json.loads(reply.read())["engine_busy_s"]
            return None

        for worker in self.roles.workers:
            if (busy_s := await asyncio.to_thread(ask, worker.url)) is not None:
                self.lives.saw_busy(worker.name, busy_s)
        self.lives.saw_restarts(self.roles.supervisor.restarts())
        self.lives.save()

    def _clear_weights(self) -> None:
        shutil.rmtree(self.weights_dir, ignore_errors=True)


def base_model(config: Config) -> str:
    """Return the model to start from; "sft" means the tiny base model, trained once and cached."""
    return str(cached_base_model(config)) if config.model.path == "sft" else config.model.path


def describe(result: EvalResult) -> str:
    """Return one line about an evaluation."""
    interval = "" if result.ci_low is None else f" [{result.ci_low:.3f}, {result.ci_high:.3f}]"
    line = f"reward {result.mean:.3f}{interval} over {result.tasks} tasks"
    if result.success is not None:
        line += f", success {result.success:.3f}"
    if result.failed:
        line += f", failed episodes {result.failed}"
    return line


def show_eval(record: dict[str, Any] | None) -> None:
    """Say what an evaluation beside the training found."""
    if record is not None:
        version = record["version"]
        if "error" in record:
            say(f"held-out at version {version}: {record['error']}")
        else:
            result = {k: v for k, v in record.items() if k not in ("version", "wall_s")}
            say(f"held-out at version {version}: {describe(EvalResult(**result))}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _weights_directory(run: Path) -> Path:
    """Return where weights travel: the same place for every life of a run, so that none is left behind."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    digest = hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()
    return base / f"asyncrl-{digest}-{run.name}"
