"""The trainer: take a batch, train, publish the next version, account for it.

    buffer --take(k)--> rank 0 --their rows--> all ranks: train step k -> k+1
    optional features have their say: see `asyncrl.train.callbacks`
    rank 0: write weights k+1 -> prepare and commit on every engine -> buffer.commit(k+1) -> log

Engines keep generating meanwhile; they pause only while weights are swapped. The buffer's commit comes last: it marks
the batch as trained and frees its slots, so after a crash before it the same batch is trained again.

Under `Config.publishes_in_background` rank 0 does its second line in a thread, from a copy of the weights, while batch
k+1 is taken and trained. Version k+2 is copied when that thread has ended, so one version at most is on its way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from asyncrl.algo.control.collapse_guard import good_checkpoint, state_of
from asyncrl.algo.curation.success_pool import as_played
from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.data.table import TokenValues
from asyncrl.errors import DeadlineError, StopError
from asyncrl.tracing import groups_spans
from asyncrl.train.auxiliary_models import AuxiliaryModels
from asyncrl.train.callbacks import StepGroups, TrainerCallback, load_states, states
from asyncrl.train.checkpointer import Checkpointer
from asyncrl.train.commitment_check import (
    ALLOWED,
    Finding,
    States,
    commitment_metrics,
    examine,
    unfit,
    unfit_reason,
)
from asyncrl.train.configured import configured
from asyncrl.train.controls import make_controls, scheduled_rate
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.examination import Examined, Examiner, refusal
from asyncrl.train.faulty_engine import faulty_engines
from asyncrl.train.logprob_check import (
    Comparison,
    Tolerance,
    compare,
    comparison_metrics,
    disagreeing,
    disagreement,
    of_groups,
)
from asyncrl.train.publication import at_once, in_thread
from asyncrl.train.schedule import gather, settle
from asyncrl.train.scored_versions import ScoredVersions
from asyncrl.train.serve_rows import share_batch
from asyncrl.train.step import StepReport, train_step
from asyncrl.train.step_batch import StepBatch, build_step_batch
from asyncrl.train.step_record import RunTotals, StepRecord, StepTimes, publish_metrics
from asyncrl.train.step_settings import StepSettings
from asyncrl.train.stream import StreamedStep
from asyncrl.train.turns import NoTurns, Turns
from asyncrl.train.voids import void_warnings
from asyncrl.types import Group
from asyncrl.weights.publish import PublishReport
from asyncrl.weights.sampled import Sequence as SampledSequence

log = logging.getLogger("asyncrl.train")

STOP_LOOK_S = 2.0
"""How often a trainer that waits for groups checks whether it was asked to stop."""


class BatchSource(Protocol):
    """The part of the buffer the trainer uses, synchronous, on rank 0. Groups come as they were encoded."""

    def take(self, step: int, wait_s: float) -> Sequence[bytes] | None:
        """Groups of the batch of `step`; [] when the plan is exhausted; None when `wait_s` passed first."""
        ...

    def peek(self, step: int, seen: Sequence[str], wait_s: float) -> tuple[Sequence[bytes], bool]: ...

    def commit(self, version: int) -> None: ...

    def set_staleness_limit(self, limit: int) -> None: ...

    def replan(self, version: int) -> int: ...

    def drop(self, step: int, group_ids: Sequence[str], reason: str) -> int: ...

    def reject(
        self,
        step: int,
        group_ids: Sequence[str],
        reason: str,
        engines: Mapping[str, Sequence[str]] | None = None,
    ) -> Sequence[str]: ...

    def fail_taken(self, step: int, group_ids: Sequence[str], reason: str) -> int: ...

    def stats(self) -> dict[str, Any]: ...


class Publisher(Protocol):
    """Brings new weights to the engines. Its calls are collectives."""

    def publish(self, version: int, engine: TrainEngine) -> PublishReport: ...

    def gather(self, version: int, engine: TrainEngine) -> Callable[[], PublishReport]:
        """Copy the weights; return what brings the copy to the engines, for a thread beside the training."""
        ...

    def interrupt(self, version: int, limit_s: float) -> list[SampledSequence]:
        """See `FilePublisher.interrupt`. No collective: only the first rank calls it."""
        ...


class Taken(NamedTuple):
    """What rank 0 got from the buffer."""

    num_groups: int = 0
    """None at the end of the plan."""
    timed_out: bool = False
    stop: bool = False
    """Whether the trainer was asked to stop while it waited."""
    again: bool = False
    """Whether the batch is not there yet."""
    publishing: bool = False
    """Whether a version was on its way to the engines: slots are free when it is there."""


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
        callbacks: Sequence[TrainerCallback] | None = None,
        weights_dir: Path | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.config = config
        self.stopped = False
        """Whether the run ended because it was asked to."""
        self.engine = engine
        self.objective = objective
        self.auxiliary = auxiliary
        self.source = source
        """The buffer on rank 0, None on all others."""
        self.publisher = publisher
        self.checkpointer = checkpointer
        self.callbacks = list(
            configured(config, objective, source is not None) if callbacks is None else callbacks
        )
        """What optional features do, in the order in which they are called; by default those of `configured`."""
        self.weights_dir = weights_dir
        """Where the publisher leaves the weights of the previous version, to check what that one sampled."""
        self.turns = turns or NoTurns()
        """Whose turn it is to use memory that engines and trainer share."""
        self.examiner = Examiner(objective.needs, config.buffer.max_staleness, engine.router_replay)
        self.controls = make_controls(config, objective)
        if self._may_go_back:
            # A feature decides; what it waits for, such as being beaten, is no collapse.
            self.controls.guard = None
        self.totals = RunTotals()
        """Of the whole run, on rank 0."""
        self.comparisons: list[Comparison] = []
        """How the newest batch's log-probabilities compare with the trainer's."""
        self.commitments: list[Finding] = []
        """How its commitments compare with the trainer's hidden states."""
        self.settings = StepSettings.of(config)
        self._planned = False
        self._void: set[str] = set()
        """Environments that a warning has named."""
        self._published: Future[PublishReport] | None = None
        """On rank 0, a version's way to the engines and into the buffer in the background."""
        if isinstance(auxiliary.snapshots, ScoredVersions):
            auxiliary.snapshots.interrupt = self._interrupt
        self._recorded: Future[None] | None = None
        """On rank 0, what records the newest version's step once that is committed."""

    def run(self, start: int = 0) -> int:
        """Train from version `start` to the end of the recipe's steps or of the plan, or until it is asked to stop.

        Return the version.
        """
        version = start
        self.turns.to_trainer()
        self.auxiliary.before_run(self.engine, version)
        returns = self.controls.guard is not None or self._may_go_back
        if not version and self.checkpointer is not None and returns:
            self.checkpointer.save_start(self.state_dict())
        for one in self.callbacks:
            one.start(version)
        self.turns.after_step()
        while version < self.config.train.num_steps:
            times = StepTimes()
            streamed, arrived = self._stream(version, times)
            batch = self._take(version, arrived, times)
            if batch is not None:
                with times.waiting():
                    self.turns.to_trainer()
            accepted = batch is not None and self._logprobs_agree(batch) and self._all_scored(batch)
            if streamed is not None and not accepted:
                streamed.abandon()
            if batch is None:
                break
            if accepted:
                self._one_step(batch, streamed, times)
                version += 1
            self.turns.after_step()
        times = StepTimes()
        with times.publishing():
            self._wait_for_publication()
        self.totals.publish_s += times.publish_s
        return version

    def _one_step(self, batch: StepBatch, streamed: StreamedStep | None, times: StepTimes) -> None:
        version = batch.step + 1
        with times.training(), groups_spans("train", batch.group_ids, step=version):
            report = self._train(batch, streamed)
        with times.waiting():
            self._after_step(batch, report, waiting=True)
        with times.training():
            report.metrics |= self.auxiliary.after_step(self.engine, version, report.metrics)
        self._settle(times)
        in_background = self.config.publishes_in_background and report.went_back_to is None
        with times.publishing():
            self._wait_for_publication()
            published = self._publish(version, batch, report, in_background)
            self._steer(report)
        step = StepRecord(batch, report, times)
        metrics = self._metrics(step) if published is not None else {}
        if published is not None:
            self.totals.add(step)
        recorded: Future[None] = Future()
        metrics |= self._checkpoint(version, recorded)
        if published is not None:
            self._record(version, metrics, published, recorded, in_background)

    def _stream(self, version: int, times: StepTimes) -> tuple[StreamedStep | None, Mapping[bytes, Group]]:
        """Under the periodic schedule train on groups as they arrive; return the open step and those groups."""
        if self.config.train.schedule != "periodic":
            return None, {}
        streamed = StreamedStep(
            self.engine, self.objective, self.auxiliary, self.settings, version,
            self._rate(version), self.controls.kl.coef, self.controls.entropy.applied,
        )  # fmt: skip
        timeout_s = self.config.buffer.wait_timeout_s
        return streamed, gather(
            streamed,
            self.source,
            self.examiner,
            times,
            timeout_s,
            self._asked_to_stop,
            STOP_LOOK_S,
            self._has_tasks,
        )

    def _take(self, version: int, arrived: Mapping[bytes, Group], times: StepTimes) -> StepBatch | None:
        """Return the batch on every rank; None at the end of the plan, or when the trainer was asked to stop. A
        batch of which groups cannot be trained is given back, and another one taken.

        arrived: groups by their encoded form that need not be decoded again. Raises `DeadlineError`, and `StaleError`
        for a token that the step may not train.
        """
        groups = None
        while groups is None:
            with times.waiting():
                taken, bodies = self._wait_for_batch(version)
            self.stopped = taken.stop
            if taken.timed_out:
                raise DeadlineError(self._nothing_taken(version))
            if not taken.num_groups:
                return None
            with times.training():
                groups = self._examined(version, bodies, arrived)
        with times.training():
            batch = None
            if self.source is not None:
                step_groups = StepGroups(groups)
                for one in self.callbacks:
                    one.groups(version, step_groups)
                batch = build_step_batch(
                    step_groups.own, version, self.config.buffer.max_staleness, step_groups.again,
                    step_groups.again_max_age, step_groups.external, step_groups.external_max_age,
                )  # fmt: skip
            return share_batch(self.engine, batch)

    def _nothing_taken(self, version: int) -> str:
        return (
            f"step {version}: no batch within buffer.wait_timeout_s={self.config.buffer.wait_timeout_s:g}; "
            f"{self.engine.on_first(self._groups_said)}; the rollout workers' logs say what they are waiting for"
        )

    def _examined(
        self, version: int, bodies: Sequence[bytes], arrived: Mapping[bytes, Group]
    ) -> list[Group] | None:
        """Return the groups of a batch, on rank 0; None on every rank where some cannot be trained: their workers are
        then set apart, and the batch is given back. A collective."""
        found = Examined()
        if self.source is not None:
            found = self.examiner.examine(bodies, version, arrived)
        unfit = self.engine.on_first(lambda: found.unfit)
        if not unfit:
            return found.groups
        if self.source is not None:
            reason = refusal(unfit, version)
            workers = self.source.reject(version, list(unfit), reason)
            log.error("quarantined %s: %s", ", ".join(workers), reason)
        self.engine.barrier()
        return None

    def _wait_for_batch(self, version: int) -> tuple[Taken, Sequence[bytes]]:
        """Look for the batch again and again until it is there, too late or no longer wanted.

        Return what was found and, on rank 0, the encoded groups. The ranks meet at each look, so that none of them
        waits for rank 0 in one collective for as long as it takes.
        """
        left_s = self.config.buffer.wait_timeout_s
        while True:
            found, bodies = self._look_for_batch(version, left_s)
            taken = Taken(*self.engine.broadcast(found))
            if not taken.again:
                return taken, bodies
            if not taken.publishing and self._has_tasks():
                left_s -= STOP_LOOK_S

    def _look_for_batch(self, version: int, left_s: float) -> tuple[Taken | None, Sequence[bytes]]:
        """Return what rank 0 finds within a moment; nothing on the others."""
        if self.source is None:
            return None, ()
        publishing = self._publishing()
        if self._asked_to_stop():
            return Taken(stop=True), ()
        groups = self.source.take(version, min(left_s, STOP_LOOK_S))
        if groups is not None:
            return Taken(len(groups)), groups
        last = left_s <= STOP_LOOK_S and not publishing and self._has_tasks()
        return Taken(timed_out=last, again=not last, publishing=publishing), ()

    def _groups_said(self) -> str:
        """Say what has become of the groups that were to make the next batch. On the first rank."""
        assert self.source is not None
        counts = self.source.stats()
        dropped = ", ".join(f"{reason} {groups}" for reason, groups in counts["dropped_by_reason"].items())
        return (
            f"{counts['ready']} of {self.config.buffer.groups_per_step} groups are ready and {counts['in_flight']} are "
            f"being played; dropped in this run: {dropped or 'none'}"
        )

    def _has_tasks(self) -> bool:
        """False until the launcher has planned tasks, which it does after the evaluation of the base model: that time
        is no part of the wait for a batch."""
        if self.source is not None and not self._planned:
            counts = self.source.stats()
            self._planned = bool(counts["admitted"] or counts["pending"] or counts["plan_closed"])
        return self._planned

    def _train(self, batch: StepBatch, streamed: StreamedStep | None) -> StepReport:
        """Take the step that was streamed or, where that cannot be, the whole batch's; then judge it."""
        report = streamed.finish(batch) if streamed is not None else None
        if report is None:
            trained = batch
            for one in self.callbacks:
                trained = one.batch(self.engine, trained, self.settings)
            report = train_step(
                self.engine, self.objective, self.auxiliary, trained, self.settings, self._rate(batch.step),
                self.controls, lambda found: self._set_aside(batch, found),
            )  # fmt: skip
            if trained is not batch:
                for one in self.callbacks:
                    one.annotate(report)
        # Where no optimizer step was taken, too: the next version has the same weights and another number.
        self.auxiliary.before_update(self.engine, batch, self.settings)
        self._guard(batch, report)
        self._after_step(batch, report)
        return report

    def _after_step(self, batch: StepBatch, report: StepReport, waiting: bool = False) -> None:
        """Let callbacks learn from the step, and go back to an earlier policy as they say. A collective.

        waiting: of those whose time counts as waiting, or of the others.
        """
        for one in self.callbacks:
            if one.waits != waiting or (one.may_go_back and self.checkpointer is None):
                continue
            verdict = one.after_step(self.engine, batch, self.settings, report)
            report.metrics |= verdict.metrics
            if verdict.go_back_to is not None:
                assert self.checkpointer is not None
                if not self._go_back(self.checkpointer, verdict.go_back_to):
                    raise StopError(
                        f"step {batch.step}: the checkpoint of version {verdict.go_back_to}, to go back to, is damaged"
                    )
                report.went_back_to = verdict.go_back_to
            if verdict.said:
                report.said = f"step {batch.step + 1}: {verdict.said}"
                log.info("%s", report.said)

    def _guard(self, batch: StepBatch, report: StepReport) -> None:
        """Let the guard judge the step; slow down, or bring back an earlier policy, as it says. A collective.

        Versions go on: the next one has the weights of the one gone back to, so that no task is trained twice.
        """
        guard, saver = self.controls.guard, self.checkpointer
        if guard is None:
            return

        def judged() -> dict[str, Any]:
            kept = saver.versions() if saver is not None else []
            verdict = guard.update(batch, report.metrics, kept)
            pinned = good_checkpoint(guard.state, kept)
            return {"state": asdict(guard.state), "pinned": pinned, **asdict(verdict)}

        found = self.engine.on_first(judged)
        guard.state = state_of(found["state"])
        said = found["why"]
        if saver is not None:
            saver.pinned = found["pinned"]
            if found["action"] == "go_back" and self._go_back(saver, found["version"]):
                report.went_back_to = found["version"]
                said += f"; back to version {found['version']}"
        rate = self._rate(batch.step + 1)
        report.metrics |= {"guard/rate_scale": guard.state.scale}
        if said:
            report.said = (
                f"step {batch.step + 1}: {said}; the learning rate is now {rate:.2g} (train.collapse_guard)"
            )
            log.warning("collapse guard: %s", report.said)

    def _go_back(self, saver: Checkpointer, version: int) -> bool:
        """Take weights, optimizer and all that follows them from the checkpoint of `version`; False if it is damaged.

        The guard, the staleness limit and what counts the run's steps stay as they are. A collective.
        """
        extra = saver.go_back(version)
        if extra is None:
            return False
        kept = self.controls.state_dict()
        self.load_state_dict({**extra, "totals": self.totals.to_dict()}, going_back=True)
        mine = self.controls.state_dict() | {name: kept[name] for name in ("guard", "staleness")}
        self.controls.load_state_dict(mine)
        return True

    def _rate(self, version: int) -> float:
        """Return the learning rate of the step that starts at `version`."""
        return scheduled_rate(self.config.train, version) * self.controls.rate_scale

    def _publish(
        self, version: int, batch: StepBatch, report: StepReport, in_background: bool
    ) -> Future[PublishReport] | None:
        """Bring the version to the engines, then tell the buffer: at once, or in the background from a copy.

        Return that on rank 0.
        """
        start = time.perf_counter()
        if in_background:
            send = self.publisher.gather(version, self.engine)
        else:
            send = partial(self.publisher.publish, version, self.engine)
        source = self.source
        if source is None:
            if not in_background:
                send()
            return None
        fresh, values = [as_played(group) for group in batch.fresh], token_values(batch, report)

        def publish() -> PublishReport:
            published = send()
            source.commit(version)
            if report.went_back_to is not None:
                # What is in flight was sampled by the policy that has been given up.
                source.replan(version)
                for one in self.callbacks:
                    one.went_back()
            for one in self.callbacks:
                one.committed(version, fresh, values)
            published.total_s = time.perf_counter() - start
            return published

        if in_background:
            published = self._published = in_thread(publish, Future(), "publishing")
        else:
            published = at_once(publish, Future())
            self.totals.pauses_s += published.result().pause_s
        poisoned = [batch.group_ids[i] for i in report.poisoned]
        for one in self.callbacks:
            one.trained(batch, fresh, poisoned, report.went_back_to is not None)
        return published

    def _record(
        self,
        version: int,
        metrics: dict[str, Any],
        published: Future[PublishReport],
        recorded: Future[None],
        in_background: bool,
    ) -> None:
        """Write the step down, on rank 0, when its version is committed."""
        source = self.source
        assert source is not None

        def record() -> None:
            found = publish_metrics(published.result())
            whole = metrics | found | _buffer_metrics(source.stats())
            for one in self.callbacks:
                one.recorded(version, whole)

        if in_background:
            self._recorded = in_thread(record, recorded, "recording")
        else:
            at_once(record, recorded)

    def _wait_for_publication(self) -> None:
        """Wait until a version that is on its way is committed and recorded. Raises what kept it from that."""
        if self._published is not None:
            self.totals.pauses_s += self._published.result().pause_s
        if self._recorded is not None:
            self._recorded.result()
        self._published = self._recorded = None

    def _publishing(self) -> bool:
        """True while a version is on its way. Raises what ended that, so that no batch is waited for in vain."""
        for work in (self._published, self._recorded):
            if work is not None and work.done():
                work.result()
        return self._published is not None and not self._published.done()

    def _metrics(self, step: StepRecord) -> dict[str, Any]:
        for env, said in void_warnings(step.batch.fresh).items():
            if env not in self._void:
                self._void.add(env)
                log.warning("step %d: %s", step.batch.step, said)
        of_features: dict[str, Any] = {}
        for one in self.callbacks:
            of_features |= one.metrics(step.batch.step)
        return {
            # When the trainer was done with the step; its version may be committed later.
            "time": time.time(),
            **step.metrics(),
            "proximal": self.objective.proximal_form,
            **comparison_metrics(self.comparisons),
            **commitment_metrics(self.commitments),
            **of_features,
        }

    def _settle(self, times: StepTimes) -> None:
        """Under the one-step-off schedule let what is being generated finish: no episode then spans two versions.

        Raises `DeadlineError`.
        """
        if self.config.train.schedule != "one_step_off":
            return
        with times.waiting():
            if self.source is not None:
                each_s, tell = STOP_LOOK_S, self.engine.broadcast
                settle(self.source.stats, self.config.buffer.wait_timeout_s, each_s, lambda: tell(False))
            while not self.engine.broadcast(True if self.source is not None else None):
                # Rank 0 is still waiting.
                pass

    def _logprobs_agree(self, batch: StepBatch) -> bool:
        """False when groups of the batch were not sampled from the policy: the batch is then rejected.

        If the buffer crashes and forgets that, the batch comes again and fails the same check.
        """
        tolerance = Tolerance.of(self.config.train.max_logp_error)
        kept_kv = self.config.engine.keep_kv
        states: States | None = {} if self.config.train.commitments else None
        parts = compare(self.engine, batch, tolerance, self.settings, self.weights_dir, kept_kv, states)
        self.comparisons = of_groups(parts)
        self.commitments = []
        if states is not None:
            examined = self.engine.on_first(lambda: examine(batch, states))
            self.commitments = [Finding(*one) for one in examined]
        wrong = disagreeing(self.comparisons, tolerance)
        allowed = ALLOWED[self.engine.states_dtype]
        forged = unfit(self.commitments, allowed)
        if not wrong and not forged:
            return True
        reasons = [disagreement(wrong, batch.step, tolerance)] if wrong else []
        reasons += [unfit_reason(forged, batch.step, allowed)] if forged else []
        reason = "; ".join(reasons)
        if self.source is not None:
            groups = dict.fromkeys([*(one.group for one in wrong), *(one.group for one in forged)])
            engines = {} if forged else faulty_engines(parts, tolerance)
            workers = self.source.reject(batch.step, list(groups), reason, engines)
            log.error("quarantined %s: %s", ", ".join(workers), reason)
        self.engine.barrier()
        return False

    def _all_scored(self, batch: StepBatch) -> bool:
        """False when log-probabilities of earlier versions are missing that cannot be computed any more: the batch is
        then given back without the groups that need them.

        An engine has died, say, before it said what it had sampled, or the trainer went back to a checkpoint.
        """
        scored = self.auxiliary.snapshots
        if not isinstance(scored, ScoredVersions):
            return True
        missing = self.engine.on_first(lambda: scored.missing(batch))
        if not missing:
            return True
        if self.source is not None:
            reason = (
                f"old log-probabilities of {sum(missing.values())} tokens in {len(missing)} groups are missing: their "
                f"versions were replaced before they were scored (step {batch.step}, train.old_policy='interrupt')"
            )
            log.warning("%s; the groups are sampled again", reason)
            self.source.fail_taken(batch.step, list(missing), reason)
        self.engine.barrier()
        return False

    def _interrupt(self, version: int) -> list[SampledSequence]:
        """Pause the engines, once they have the version, and return what it has sampled. On rank 0."""
        self._wait_for_publication()
        return self.publisher.interrupt(version, self.config.rank_timeout_s)

    def _set_aside(self, batch: StepBatch, found: dict[int, str]) -> None:
        """Save poisoned groups and take them out of the batch. Raises `StopError` where the recipe says so."""
        version = batch.step
        wrong = {batch.group_ids[index]: why for index, why in found.items()}
        engines = {"policy": self.engine, **self.auxiliary.trained_engines}
        state = self.state_dict()
        kept = [one.poisoned(batch, wrong, engines, state) for one in self.callbacks]
        path = next((file for file in kept if file is not None), None)
        message = "; ".join(f"group {group}: {why}" for group, why in wrong.items())
        if self.source is not None:
            log.error("step %d leaves out poisoned groups (%s), kept in %s", version, message, path)
            self.source.drop(version, list(wrong), "poison")
        self.engine.barrier()
        if self.config.train.on_poison == "stop":
            raise StopError(f"step {version}: {message}; train.on_poison is 'stop'")

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
        self.turns.to_trainer()
        for one in self.callbacks:
            one.before_checkpoint(self.engine, saver.due_on_disk(version))
        stall_s = saver.save_due(version, self.state_dict(), recorded.result)
        return error | {"time/checkpoint_s": stall_s, "time/checkpoint_write_s": saver.write_s}

    def _steer(self, report: StepReport) -> None:
        """Update the controllers from what the step measured; every rank computes the same."""
        controls = self.controls
        if report.went_back_to is not None:
            # It measured the policy that has been given up.
            return
        controls.kl.update(report.metrics, report.num_sequences)
        if controls.kl.target is not None:
            report.metrics["kl_coef"] = controls.kl.coef
        controls.entropy.update(report.metrics)
        if controls.entropy.target is not None:
            report.metrics["entropy_coef"] = controls.entropy.applied
        if controls.staleness is None:
            return
        changed = controls.staleness.update(report.metrics)
        report.metrics["staleness/bound"] = float(controls.staleness.state.max_staleness)
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
        """Return the staleness limit that its controller has set; None when the recipe's holds."""
        staleness = self.controls.staleness
        # A run may be resumed under a lower limit than its checkpoint has.
        return min(staleness.state.max_staleness, staleness.rule.maximum) if staleness is not None else None

    def load_state_dict(self, state: dict[str, Any], going_back: bool = False) -> None:
        """Take back what `state_dict` returned. Call on every rank.

        going_back: while the run goes on; what survives that stays as it is.
        """
        self.auxiliary.load_state_dict(state["auxiliary"])
        self.controls.load_state_dict(state["controls"])
        self.totals = RunTotals.from_dict(state["totals"])
        load_states(self.callbacks, state, going_back)

    def join(self, engine: TrainEngine) -> bool:
        """Have callbacks take part; return whether the policy has got other weights by that. A collective."""
        joined = [one.join(engine) for one in self.callbacks]
        return any(joined)

    @property
    def _may_go_back(self) -> bool:
        return any(one.may_go_back for one in self.callbacks)

    def _asked_to_stop(self) -> bool:
        return any(one.asked_to_stop() for one in self.callbacks)


def _buffer_metrics(stats: dict[str, Any]) -> dict[str, int | float]:
    return {f"buffer/{name}": value for name, value in stats.items() if isinstance(value, int | float)}


def token_values(batch: StepBatch, report: StepReport) -> TokenValues:
    """Return what a step computed for the tokens of its rows, for the table. On the first rank."""
    columns = {
        name: [values.row(row).numpy() for row in range(batch.num_rows)]
        for name, values in report.token_values.items()
    }
    return TokenValues(batch.trajectories, columns, report.turn_rewards)
