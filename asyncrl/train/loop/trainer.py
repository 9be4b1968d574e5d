"""The trainer: take a batch, train, publish the next version, account for it.

    buffer --take(k)--> rank 0 --their rows--> all ranks: train step k -> k+1
    optional features have their say: see `asyncrl.train.loop.callbacks`
    rank 0: write weights k+1 -> prepare and commit on every engine -> buffer.commit(k+1) -> log

Engines keep generating meanwhile; they pause only while weights are swapped. The buffer's commit comes last: it marks
the batch as trained and frees its slots, so after a crash before it the same batch is trained again.

Under `Config.publishes_in_background` rank 0 does its second line in a thread, from a copy of the weights, while batch
k+1 is taken and trained. Version k+2 is copied when that thread has ended, so one version at most is on its way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from asyncrl.algo.objective import Objective
from asyncrl.clock import stamp_s
from asyncrl.config import Config
from asyncrl.errors import StopError
from asyncrl.tracing import groups_spans
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.batches import STOP_LOOK_S, Batches, BatchSource
from asyncrl.train.loop.callbacks import TrainerCallback, load_states, states
from asyncrl.train.loop.publication import Publication, Publisher
from asyncrl.train.loop.step_record import RunTotals, StepRecord, StepTimes
from asyncrl.train.loop.voids import void_warnings
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.controls import make_controls, scheduled_rate
from asyncrl.train.step.step import StepReport, train_step
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import Group

if TYPE_CHECKING:
    from asyncrl.train.step.stream import StreamedStep

log = logging.getLogger("asyncrl.train")


class Trainer:
    """Runs steps on every rank; only rank 0 talks to the other processes."""

    def __init__(
        self,
        config: Config,
        engine: TrainEngine,
        objective: Objective,
        auxiliary: AuxiliaryModels,
        source: BatchSource | None,
        publisher: Publisher,
        checkpointer: Checkpointer | None = None,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self.config = config
        self.engine = engine
        self.objective = objective
        self.auxiliary = auxiliary
        self.source = source
        """The buffer on rank 0, None on all others."""
        self.checkpointer = checkpointer
        self.callbacks = list(callbacks)
        """What optional features do, in the order in which they are called; see `asyncrl.train.loop.configured`."""
        self.publication = Publication(engine, publisher, source, self.callbacks)
        self.batches = Batches(config, engine, objective, source, self.callbacks, self.publication)
        self.controls = make_controls(config, objective)
        self.totals = RunTotals()
        """The totals of the whole run, on rank 0."""
        self.settings = StepSettings.of(config)
        self._void: set[str] = set()
        """Environments that a warning has named."""
        for one in self.callbacks:
            one.attach(self.publication)

    @property
    def stopped(self) -> bool:
        """Whether the run ended because it was asked to."""
        return self.batches.stopped

    def run(self, start: int = 0) -> int:
        """Train from version `start` to the end of the recipe's steps or of the plan, or until it is asked to stop.

        Return the version.
        """
        version = start
        self._begin(version)
        while version < self.config.train.num_steps:
            times = StepTimes()
            streamed, arrived = self._stream(version, times)
            batch = self.batches.take(version, arrived, times)
            if batch is not None:
                with times.waiting():
                    self.begin_work()
            accepted = batch is not None and self.batches.accepts(batch, self.settings)
            if streamed is not None and not accepted:
                streamed.abandon()
            if batch is None:
                break
            if accepted:
                self._one_step(batch, streamed, times)
                version += 1
            self.end_work()
        times = StepTimes()
        with times.publishing():
            self._wait_for_publication()
        self.totals.publish_s += times.publish_s
        return version

    def _begin(self, version: int) -> None:
        """Do what comes before the first step."""
        self.begin_work()
        self.auxiliary.before_run(self.engine, version)
        if not version and self.checkpointer is not None and any(one.may_go_back for one in self.callbacks):
            self.checkpointer.save_start(self.state_dict())
        for one in self.callbacks:
            one.start(version)
        self.end_work()

    def _one_step(self, batch: StepBatch, streamed: StreamedStep | None, times: StepTimes) -> None:
        version = batch.step + 1
        with times.training(), groups_spans("train", batch.group_ids, step=version):
            report = self._train(batch, streamed)
        with times.waiting():
            self._after_step(batch, report, waiting=True)
        with times.training():
            report.metrics |= self.auxiliary.after_step(self.engine, version, report.metrics)
        if self.config.train.schedule == "one_step_off":
            # What is being generated finishes: no episode then spans two versions.
            from asyncrl.train.loop.schedule import settle_all

            with times.waiting():
                stats = self.source.stats if self.source is not None else None
                settle_all(self.engine, stats, self.config.buffer.wait_timeout_s, STOP_LOOK_S)
        in_background = self.config.publishes_in_background and report.went_back_to is None
        with times.publishing():
            self._wait_for_publication()
            published = self.publication.publish(version, batch, report, in_background)
            self.totals.pauses_s += self.publication.take_pauses_s()
            self._steer(report)
        step = StepRecord(batch, report, times)
        metrics = self._metrics(step) if published is not None else {}
        if published is not None:
            self.totals.add(step)
        recorded: Future[None] = Future()
        metrics |= self._checkpoint(version, recorded)
        if published is not None:
            self.publication.record(version, metrics, published, recorded, in_background)

    def _stream(self, version: int, times: StepTimes) -> tuple[StreamedStep | None, Mapping[bytes, Group]]:
        """Under the periodic schedule train on groups as they arrive; return the open step and those groups."""
        if self.config.train.schedule != "periodic":
            return None, {}
        from asyncrl.train.step.stream import StreamedStep

        streamed = StreamedStep(
            self.engine, self.objective, self.auxiliary, self.settings, version,
            self._rate(version), self.controls.kl.coef, self.controls.entropy.applied,
        )  # fmt: skip
        return streamed, self.batches.gather(streamed, times)

    def _train(self, batch: StepBatch, streamed: StreamedStep | None) -> StepReport:
        """Take the step that was streamed or, where that cannot be, the whole batch's; callbacks learn from it."""
        report = streamed.finish(batch) if streamed is not None else None
        if report is None:
            trained = batch
            for one in self.callbacks:
                trained = one.batch(self.engine, trained, self.settings)
            report = train_step(
                self.engine, self.objective, self.auxiliary, trained, self.settings, self._rate(batch.step),
                self.controls, lambda found: self._leave_out(batch, found),
            )  # fmt: skip
            if trained is not batch:
                for one in self.callbacks:
                    one.annotate(report)
        # Where no optimizer step was taken, too: the next version has the same weights and another number.
        self.auxiliary.before_update(self.engine, batch, self.settings)
        self._after_step(batch, report)
        return report

    def _leave_out(self, batch: StepBatch, found: dict[int, str]) -> None:
        """Take groups that are not finite out of the batch. Raises `StopError` where the recipe says so."""
        from asyncrl.train.loop.left_out import leave_out

        engines = {"policy": self.engine, **self.auxiliary.trained_engines}
        leave_out(batch, found, engines, self.state_dict(), self.callbacks, self.source, self.config.train)

    def _after_step(self, batch: StepBatch, report: StepReport, waiting: bool = False) -> None:
        """Let callbacks learn from the step, and go back to an earlier policy as they say. A collective.

        waiting: of those whose time counts as waiting, or of the others. Versions go on: the next one has the weights
        of the one gone back to, so that no task is trained twice.
        """
        for one in self.callbacks:
            if one.waits != waiting:
                continue
            verdict = one.after_step(self.engine, batch, self.settings, report)
            report.metrics |= verdict.metrics
            back = verdict.go_back_to
            went_back = back is not None and self._go_back(back)
            if went_back:
                report.went_back_to = back
            elif back is not None and verdict.stops_without:
                raise StopError(
                    f"step {batch.step}: the checkpoint of version {back}, to go back to, is damaged"
                )
            if text := verdict.message if isinstance(verdict.message, str) else verdict.message(went_back):
                report.message = f"step {batch.step + 1}: {text}"
                log.log(verdict.level, "%s", report.message)

    def _go_back(self, version: int) -> bool:
        """Take weights, optimizer and all that follows them from the checkpoint of `version`; False if it is damaged.

        The staleness limit, what counts the run's steps, and callbacks that survive it stay as they are. A collective.
        """
        assert self.checkpointer is not None
        extra = self.checkpointer.go_back(version)
        if extra is None:
            return False
        staleness = self.controls.state_dict()["staleness"]
        self.load_state_dict({**extra, "totals": self.totals.to_dict()}, going_back=True)
        self.controls.load_state_dict({**self.controls.state_dict(), "staleness": staleness})
        return True

    def _rate(self, version: int) -> float:
        """Return the learning rate of the step that starts at `version`."""
        rate = scheduled_rate(self.config.train, version)
        for one in self.callbacks:
            rate *= one.rate_factor
        return rate

    def _wait_for_publication(self) -> None:
        """Wait until a version that is on its way is committed and recorded. Raises what kept it from that."""
        self.publication.wait()
        self.totals.pauses_s += self.publication.take_pauses_s()

    def _metrics(self, step: StepRecord) -> dict[str, Any]:
        for env, warning in void_warnings(step.batch.fresh).items():
            if env not in self._void:
                self._void.add(env)
                log.warning("step %d: %s", step.batch.step, warning)
        of_features: dict[str, Any] = {}
        for one in self.callbacks:
            of_features |= one.metrics(step.batch.step)
        return {
            # When the trainer was done with the step; its version may be committed later.
            "time": stamp_s(),
            **step.metrics(),
            "proximal": self.objective.proximal_form,
            **of_features,
        }

    def _checkpoint(self, version: int, recorded: Future[None]) -> dict[str, Any]:
        """Save when due; return how long training was blocked, and the error of the previous write if it failed.

        The checkpoint is complete when the version is committed and its step recorded: none is ever beyond the ledger,
        and no run that goes on from it lacks a record.
        """
        saver = self.checkpointer
        if saver is None:
            return {}
        error = {"checkpoint/error": saver.error} if saver.error else {}
        if not saver.due(version):
            return error
        self.begin_work()
        for one in self.callbacks:
            one.before_checkpoint(self.engine, saver.due_on_disk(version))
        stall_s = saver.save_due(version, self.state_dict(), recorded.result)
        return error | {"time/checkpoint_s": stall_s, "time/checkpoint_write_s": saver.write_s}

    def _steer(self, report: StepReport) -> None:
        """Update the controllers from what the step measured, unless that was a policy which has been given up."""
        if report.went_back_to is not None:
            return
        changed = self.controls.steer(report.metrics, report.num_sequences)
        if changed is not None and self.source is not None:
            self.source.set_staleness_limit(changed)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps besides weights and optimizer; tensors and plain values only."""
        return {
            "auxiliary": self.auxiliary.state_dict(),
            "controls": self.controls.state_dict(),
            "totals": self.totals.to_dict(),
            **states(self.callbacks),
        }

    def staleness_limit(self) -> int | None:
        """See `Controls.staleness_limit`."""
        return self.controls.staleness_limit()

    def load_state_dict(self, state: dict[str, Any], going_back: bool = False) -> None:
        """Take back what `state_dict` returned. Call on every rank.

        going_back: while the run goes on; what survives that stays as it is.
        """
        self.auxiliary.load_state_dict(state["auxiliary"])
        self.controls.load_state_dict(state["controls"])
        self.totals = RunTotals.from_dict(state["totals"])
        load_states(self.callbacks, state, going_back)

    def begin_work(self) -> None:
        """See `TrainerCallback.begin_work`."""
        for one in self.callbacks:
            one.begin_work()

    def end_work(self) -> None:
        """See `TrainerCallback.end_work`."""
        for one in self.callbacks:
            one.end_work()

    def join(self, engine: TrainEngine) -> bool:
        """Have callbacks take part; return whether the policy has got other weights by that. A collective."""
        joined = [one.join(engine) for one in self.callbacks]
        return any(joined)
