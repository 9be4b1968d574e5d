"""`asyncrl train`: one run from a recipe to a summary.

buffer, environments, engines start together; workers and trainer when those serve; evaluation before
tasks are planned -> workers lease -> the trainer steps and publishes -> the trainer ends
further policies' trainers end, too -> evaluation after on the final weights -> plot, summary
everything stops in reverse order

Meanwhile dead processes are restarted (`launch.supervise`). A run whose launcher died is resumed by
`asyncrl train --resume runs/NAME`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from asyncrl.config import Config
from asyncrl.console import say
from asyncrl.credentials import authorization
from asyncrl.errors import AsyncRLError, ConfigError, DeadlineError, StopError
from asyncrl.gpus import found_gpus
from asyncrl.http_clients import open_url
from asyncrl.launch.checks.places import check_places
from asyncrl.launch.cluster import Cluster, ClusterMonitor, FurtherMachines
from asyncrl.launch.evaluation.evaluate import EvalResult, evaluate_with
from asyncrl.launch.evaluation.periodic_evaluation import PeriodicEvaluation
from asyncrl.launch.machines.placement import Placement, placed, plan
from asyncrl.launch.models.start_model import start_model
from asyncrl.launch.models.weights_folder import check_room
from asyncrl.launch.policies import PolicyPlan, check_same_tokenizer, policy_folder
from asyncrl.launch.processes.process_group import ProcessGroup
from asyncrl.launch.reports.activity import ActivityLog
from asyncrl.launch.reports.buffer_report import BufferReport
from asyncrl.launch.reports.engine_troubles import EngineTroubleReport, EngineTroubles
from asyncrl.launch.reports.failures import USABLE
from asyncrl.launch.reports.panel import ShowStep, steps_shown
from asyncrl.launch.reports.phases import TrainingPhases
from asyncrl.launch.reports.quarantine import QuarantineReport
from asyncrl.launch.reports.samples import FirstSamples, trained_samples
from asyncrl.launch.roles.buffer_place import buffer_place, settle_ledger
from asyncrl.launch.roles.faulty_engines import FaultyEngines
from asyncrl.launch.roles.policy_roles import PolicyRoles
from asyncrl.launch.roles.roles import Roles
from asyncrl.launch.run_monitors import MonitorContext, RunMonitor, run_monitors
from asyncrl.launch.summary import PolicyResult, RunResult, build_summary
from asyncrl.progress import clear_line, elapsing, progress
from asyncrl.run.checkpoints import complete_checkpoints
from asyncrl.run.folder import RunFolder, folder_of, private_folder
from asyncrl.run.metrics import plot_rewards, read_metrics
from asyncrl.run.observe import RunObserver
from asyncrl.run.totals import RunTotals, mark_unfinished
from asyncrl.services.buffer.client import BufferClient
from asyncrl.tasks.data_rows import has_rows, rows_of
from asyncrl.tasks.plans import Plan, plan_tasks
from asyncrl.weights.folders import claim_weights, remove_deserted, remove_weights, weights_folder

TICK_S = 0.25
DESCRIBE_EVERY_S = 5.0
STATUS_EVERY_S = 1.0
DIAGNOSE_EVERY = 5
"""Steps between two looks at whether the run learns."""
ROWS = "rows.json"
"""File of a run folder that says which rows the run has."""
SAVE_S = 120.0
"""How long an interrupted run waits for its last checkpoint."""
FAST_STOP_S = 0.5
"""What processes have to end in when the user has interrupted twice."""


class TrainRun:
    """Everything one run does, in order."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        resume: bool = False,
        on: FurtherMachines | None = None,
    ) -> None:
        """on: the further machines of the run; None for this one alone."""
        if on is None:
            check_places(config, alone=True)
        self.cluster: Cluster | None = None if on is None else on.cluster(config, folder.path)
        self.placement = plan(config, found_gpus()) if on is None else Placement()
        self.config = placed(config, self.placement)
        self.folder = folder
        self.resume = resume
        self.weights_dir = weights_folder(config, folder.path)
        self.roles: Roles
        self.eval_before: EvalResult | None = None
        self.eval_after: EvalResult | None = None
        self.periodic_evaluation: PeriodicEvaluation
        self.monitors: list[RunMonitor] = []
        self.models: dict[str, str] = {}
        """The models of the further policies."""
        self.policies: dict[str, PolicyPlan] = {}
        self.policy_stats: dict[str, dict[str, Any]] = {}
        """Last counts of the further policies' buffers."""
        self.totals = RunTotals(folder, resume)
        self._claim: IO[str] | None = None
        """Held while the run needs its folder of weights."""
        self._interrupted_again = False

    def run(self) -> dict[str, Any]:
        """Run to the end and return the summary. Raises `AsyncRLError`; nothing is left running either way."""
        tasks = plan_tasks(self.config)
        self._tell_of_rows()
        mark_unfinished(self.folder.path)
        self.folder.write_json("config.json", self.config.model_dump(mode="json"))
        model = start_model(self.config)
        self.models = {name: start_model(self.config.policy(name)) for name in self.config.policies}
        # What an earlier launch has left, whose buffers were on nodes.
        self._settle()
        with self.cluster or contextlib.nullcontext():
            if self.cluster is not None:
                self._gather(self.cluster, model)
            for folder, config in self._buffers():
                buffer_place(config, folder).prepare()
            try:
                result = self._run(tasks, model)
            except BaseException:
                try:
                    self._settle()
                except AsyncRLError as error:
                    # Why the run has ended says more.
                    print_status(str(error))
                raise
            self._settle()
            return result

    def _tell_of_rows(self) -> None:
        """Say which rows are trained on; refuse to go on with others than those that the run began with."""
        if not has_rows(self.config):
            return
        rows, kept = rows_of(self.config), self.folder.path / ROWS
        for note in rows.notes:
            print_status(f"data: {note}")
        began = json.loads(kept.read_text())["digest"] if self.resume and kept.exists() else rows.digest
        if began != rows.digest:
            raise ConfigError(
                f"data: the rows are not those that {self.folder.path} began with (digest {rows.digest}, was {began}): "
                "a file has changed; start another run, or give it the rows it had"
            )
        self.folder.write_json(ROWS, {"digest": rows.digest, "notes": rows.notes})

    def _buffers(self) -> list[tuple[Path, Config]]:
        """Return the folder and the configuration of each policy, whose buffer's ledger is in it."""
        names = self.config.policy_names
        return [(folder_of(self.folder.path, name), self.config.policy(name)) for name in names]

    def _settle(self) -> None:
        """Have in the run's folders what buffers on nodes have acknowledged."""
        for folder, _ in self._buffers():
            settle_ledger(folder)

    def _gather(self, cluster: Cluster, model: str) -> None:
        """Wait for the nodes of the run."""
        print_status(f"waiting for {cluster.awaited}")
        cluster.gather(model, self.models)
        self.placement = cluster.placement
        print_status(f"placement: {self.placement}")

    def _run(self, tasks: Plan, model: str) -> dict[str, Any]:
        self.roles = self.make_roles(model)
        self._add_policies()
        self.periodic_evaluation = self.make_periodic_evaluation()
        try:
            self._clear_weights()
            for line in remove_deserted(self.weights_dir.parent):
                print_status(line)
            check_room(self.config, self.roles.main.model, self.weights_dir)
            for roles in self.roles.policies.values():
                private_folder(roles.weights_dir)
            self._claim = claim_weights(self.weights_dir, self.folder.path)
            placement = self.placement
            if placement.gpus or placement.sleep:
                print_status(f"placement: {placement}")
            print_status("starting buffer, environments and engine(s); the first answer takes about 20 s")
            with elapsing("starting buffer, environments and engine(s)"):
                self.roles.start()
            stats = asyncio.run(self.roles.supervisor.run(self._phases(tasks)))
        except KeyboardInterrupt:
            self._save_last()
            raise
        finally:
            self._stop()
            for monitor in self.monitors:
                monitor.ended()
        summary = build_summary(self._result(stats))
        self.folder.write_json("summary.json", summary)
        before = self.eval_before.mean if self.eval_before else None
        plot_rewards(self.folder.path, before, self.eval_after.mean if self.eval_after else None)
        for policy in self.roles.further.values():
            plot_rewards(policy.folder, None, None)
        return summary

    def _result(self, stats: dict[str, Any]) -> RunResult:
        """Return what the run has left behind; `stats` are the last counts of the main policy's buffer."""
        self.totals.save()
        return RunResult(
            main=_policy_result(self.roles.main, stats),
            totals=self.totals.totals(),
            num_engines=self.totals.mean_engines(),
            seed=self.config.run.seed,
            eval_before=self.eval_before,
            eval_after=self.eval_after,
            evals=self.periodic_evaluation.results,
            policies={
                name: _policy_result(roles, self.policy_stats[name])
                for name, roles in self.roles.further.items()
            },
        )

    def _save_last(self) -> None:
        """Have the trainers end with a checkpoint, unless that takes too long or the user interrupts again."""
        asked = [r for r in self.roles.policies.values() if r.ask_trainer_to_stop()]
        if not asked:
            return
        print_status(
            f"interrupted: saving a last checkpoint, for {SAVE_S:g} s at most; Ctrl-C again stops at once"
        )
        deadline = time.monotonic() + SAVE_S
        try:
            while any(roles.trainer.alive() for roles in asked) and time.monotonic() < deadline:
                time.sleep(TICK_S)
        except KeyboardInterrupt:
            self._interrupted_again = True
        for roles in asked:
            kept = complete_checkpoints(roles.folder / "checkpoints")
            newest = f"the newest checkpoint is {kept[0][1]}" if kept else "there is no checkpoint yet"
            print_status(
                newest + (f"; {roles.trainer.name} has saved no other" if roles.trainer.alive() else "")
            )

    def _stop(self) -> None:
        """Stop every process, at once when interrupted again."""
        try:
            self.roles.process_group.stop(grace_s=FAST_STOP_S if self._interrupted_again else None)
        except KeyboardInterrupt:
            self.roles.process_group.stop(grace_s=FAST_STOP_S)
            raise
        finally:
            self._clear_weights()

    def make_roles(self, model: str) -> Roles:
        """Return what starts the processes."""
        process_group = None
        if self.cluster is not None:
            process_group = ProcessGroup(
                self.folder.path, self.cluster.local, self.cluster.hosts(), self.cluster.elsewhere,
                self.cluster.room, self.cluster.leave,
            )  # fmt: skip
        return Roles(self.config, self.folder.path, model, self.weights_dir, self.placement, process_group)

    def make_periodic_evaluation(self) -> PeriodicEvaluation:
        """Return what evaluates checkpoints while the run trains."""
        return PeriodicEvaluation(
            self.config, self.folder.path, self.roles.process_group, self.placement.evaluation_env()
        )

    def _add_policies(self) -> None:
        for name in self.config.policies:
            config, model = self.config.policy(name), self.models[name]
            check_same_tokenizer(self.roles.main.model, model, name)
            self.roles.add_policy(name, config, policy_folder(self.folder.path, name, config), model)

    async def _phases(self, tasks: Plan) -> dict[str, Any]:
        """Evaluate, train, evaluate; return the buffer's last counts."""
        self.eval_before = await self._evaluated_before()
        for roles in self.roles.policies.values():
            await self._wait_for_trainer(roles)
        client = BufferClient(
            self.roles.main.buffer_address(),
            self.roles.credentials.bearer("buffer"),
            self.config.buffer_outage_s,
        )
        self.policies = {
            name: PolicyPlan(roles, self.roles.supervisor) for name, roles in self.roles.further.items()
        }
        try:
            await self._train(client, tasks)
            stats = await client.status()
            for name, policy in self.policies.items():
                self.policy_stats[name] = await policy.finish()
        finally:
            await client.close()
            for policy in self.policies.values():
                await policy.close()
        print_evaluation(await self.periodic_evaluation.finish(self.config.evaluation_timeout_s))
        self.eval_after = await self._evaluate("after")
        return stats

    async def _evaluated_before(self) -> EvalResult | None:
        """Return the evaluation of the base model; a resumed run has it on disk."""
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
            seen=FirstSamples(print_status).see if when == "before" else None,
        )  # fmt: skip
        print_status(f"held-out {when} training: {describe(result)}")
        return result

    async def _wait_for_trainer(self, roles: PolicyRoles) -> None:
        deadline = roles.trainer.start_deadline(self.config.run.start_timeout_s)
        with progress(f"waiting for {roles.trainer.name} to load its model") as goes_on:
            while not roles.trainer_ready():
                if missed := deadline.missed():
                    trainer = roles.trainer
                    raise DeadlineError(f"{trainer.name} {missed}; see {trainer.log}\n{trainer.tail()}")
                goes_on(0)
                await asyncio.sleep(TICK_S)

    async def _train(self, client: BufferClient, tasks: Plan) -> None:
        """Feed tasks and show progress until the trainer ends."""
        self.totals.training_started(len(self.roles.main.engines))
        observer = RunObserver(self.folder.path)
        with steps_shown(self.folder.path, self.config.train.num_steps, observer) as show:
            await self._feed(client, tasks, observer, show)
        await self._save_totals()
        self.totals.training_ended()

    async def _feed(self, client: BufferClient, tasks: Plan, observer: RunObserver, show: ShowStep) -> None:
        """Feed tasks and report on each step until the trainer ends."""
        observer.steps.new()  # what earlier launches of the run have trained
        done, described, checked = False, float("-inf"), float("-inf")
        report = BufferReport(self.config.buffer.groups_per_step)
        further_reports = {
            name: BufferReport(policy.roles.config.buffer.groups_per_step, name)
            for name, policy in self.policies.items()
        }
        checkpoint_error = ""
        quarantines = QuarantineReport([worker.name for worker in self.roles.workers])
        faulty_engines = FaultyEngines(self.roles)
        phases, step = TrainingPhases(self.config.train.num_steps, self.config.buffer.groups_per_step), None
        samples_due = self.eval_before is None and not self.resume
        activity = self._activity_log()
        troubles = EngineTroubles(
            self.roles.credentials.bearer("rollout"), EngineTroubleReport(self.roles.name_of_engine)
        )
        cluster_monitors = self._cluster_monitors()
        self.monitors = run_monitors(MonitorContext(self.roles, client, self.folder.path, print_status))
        while not done:
            done = self.roles.supervisor.done(self.roles.main.trainer)
            if done or time.monotonic() - checked > STATUS_EVERY_S:
                stats = await client.status()
                self._follow_roles(activity, quarantines)
                for cluster_monitor in cluster_monitors:
                    if line := cluster_monitor.tick():
                        print_status(line)
                await troubles.tick([worker.url for worker in self.roles.workers])
                await activity.record(stats, troubles.listed)
                self._report_groups(stats, report)
                if not done:
                    further = {name: await policy.client.status() for name, policy in self.policies.items()}
                    for name, counts in further.items():
                        for line in further_reports[name].new_messages(counts):
                            print_status(line)
                    await self._report_quarantines(client, stats, further, quarantines, faulty_engines)
                checked = time.monotonic()
            if not done:
                for monitor in self.monitors:
                    if await monitor.tick(stats):
                        described = float("-inf")
                await tasks.feed(client)
                for policy in self.policies.values():
                    await policy.tick()
                if time.monotonic() - described > DESCRIBE_EVERY_S:
                    # Repeated, because a buffer that has restarted does not know it.
                    await client.describe(self.roles.job())
                    for policy in self.policies.values():
                        await policy.describe()
                    await self._save_totals()
                    described = time.monotonic()
            records = observer.steps.new()
            phases.tick(stats, records[-1]["step"] if records else step)
            # The trainer writes them in the background, some time after the step.
            samples_due = samples_due and not (step is not None and self._show_trained())
            for record in records:
                step = record["step"]
                show(step, record)
                if record["step"] % DIAGNOSE_EVERY == 0:
                    for finding in await asyncio.to_thread(observer.new_warnings):
                        print_status(f"{finding.kind}: {finding.what}\n    -> {finding.advice}")
                checkpoint_error = self._report_checkpoint_error(record, checkpoint_error)
                for monitor in self.monitors:
                    monitor.on_step(record)
                if error := record.get("sink/error"):
                    print_status(f"{error}; metrics.jsonl has everything, and the run does without it")
            print_evaluation(self.periodic_evaluation.tick())
            await asyncio.sleep(TICK_S)
        if samples_due:
            self._show_trained()
        phases.end()

    def _show_trained(self) -> bool:
        """Show the first samples that were trained on, where the evaluation before has shown none; return whether there
        are any."""
        samples = list(trained_samples(self.folder.path))
        for sample in samples:
            print_status(sample)
        return bool(samples)

    def _cluster_monitors(self) -> Sequence[ClusterMonitor]:
        """Return what looks after the machines of the run."""
        if self.cluster is None:
            return ()
        return self.cluster.monitors(list(self.roles.policies.values()), self.roles.supervisor)

    def _activity_log(self) -> ActivityLog:
        roles = self.roles
        processes = roles.process_group.processes
        return ActivityLog(self.folder.path, processes, roles.every_engine, roles.envs, roles.credentials)

    def _follow_roles(self, activity: ActivityLog, quarantines: QuarantineReport) -> None:
        """Tell what reports on processes which there are now."""
        roles = self.roles
        activity.follow(roles.process_group.processes, roles.every_engine, roles.envs, roles.workers)
        quarantines.workers = {worker.name for worker in roles.workers}

    def _report_checkpoint_error(self, record: dict[str, Any], reported: str) -> str:
        """Report once that checkpoints cannot be written; return the error that was reported."""
        error = str(record.get("checkpoint/error", ""))
        if error and error != reported:
            print_status(f"a checkpoint could not be written or stored; the newest one is kept: {error}")
        return error

    def _report_groups(self, stats: dict[str, Any], report: BufferReport) -> None:
        """Report failed and dropped groups in the main buffer's counts.

        Raises `StopError` when the run cannot succeed.
        """
        self.roles.finished_groups = sum(stats[state] for state in USABLE)
        for line in report.new_messages(stats):
            print_status(line)
        if reason := report.failures.reason_to_stop(stats):
            raise StopError(f"{reason}\nsee the logs of env and rollout-0 in {self.folder.path / 'logs'}")

    async def _report_quarantines(
        self,
        client: BufferClient,
        stats: dict[str, Any],
        further: dict[str, dict[str, Any]],
        quarantines: QuarantineReport,
        faulty_engines: FaultyEngines,
    ) -> None:
        """Deal with engines at fault, and report workers that any policy has quarantined for a fault of their own.

        further: counts of further policies' buffers. Raises `StopError` when no worker, or no sound engine, is left.
        """
        buffers = [(one.roles, one.client, further[name]) for name, one in self.policies.items()]
        reasons: dict[str, str] = {}
        for policy, buffer, counts in [(self.roles.main, client, stats), *buffers]:
            faulty = counts["faulty_engines"]
            for line in await faulty_engines.handle(policy, buffer, faulty):
                print_status(line)
            own = counts["quarantine_reasons"].items()
            reasons |= {worker: why for worker, why in own if why not in faulty.values()}
        for line in quarantines.new_messages(reasons):
            print_status(line)
        if reason := quarantines.reason_to_stop(reasons, stats, time.monotonic()):
            raise StopError(reason)

    async def _save_totals(self) -> None:
        """Save for how long the run has taken, and for how much of it the workers have seen engines busy."""

        def ask(url: str) -> float | None:
            request = urllib.request.Request(
                f"{url}/v1/status", headers=authorization(self.roles.credentials.bearer("rollout"))
            )
            with (
                contextlib.suppress(OSError),
                open_url(request, 10.0) as reply,
            ):
                return json.loads(reply.read())["engine_busy_s"]
            return None

        for worker in self.roles.workers:
            if (busy_s := await asyncio.to_thread(ask, worker.url)) is not None:
                self.totals.record_engine_busy(worker.name, busy_s)
        self.totals.record_engines(len(self.roles.main.engines))
        self.totals.record_restarts(self.roles.supervisor.restarts())
        self.totals.save()

    def _clear_weights(self) -> None:
        remove_weights(self.weights_dir, self._claim)


def _policy_result(roles: PolicyRoles, stats: dict[str, Any]) -> PolicyResult:
    return PolicyResult(roles.folder, roles.config.buffer.max_staleness, stats)


def describe(result: EvalResult) -> str:
    """Return one line about an evaluation."""
    interval = "" if result.ci_low is None else f" [{result.ci_low:.3f}, {result.ci_high:.3f}]"
    line = f"reward {result.mean:.3f}{interval} over {result.tasks} tasks"
    if result.success is not None:
        line += f", success {result.success:.3f}"
    if result.failed:
        line += f", failed episodes {result.failed}"
    return line


def print_evaluation(record: dict[str, Any] | None) -> None:
    """Print the result of a periodic evaluation."""
    if record is not None:
        version = record["version"]
        if "error" in record:
            print_status(f"held-out at version {version}: {record['error']}")
        else:
            result = {k: v for k, v in record.items() if k not in ("version", "wall_s")}
            print_status(f"held-out at version {version}: {describe(EvalResult(**result))}")


def print_status(text: str) -> None:
    """Print a line for the user; standard output is for results."""
    clear_line()
    say(text)
