"""The batch of each step, on all ranks: asked for, examined group by group, built, and given back where it is unfit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asyncrl.algo.objective import Objective
from asyncrl.config import Config
from asyncrl.errors import DeadlineError
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callbacks import Refusal, StepGroups, TrainerCallback
from asyncrl.train.loop.examination import Examined, Examiner, refusal
from asyncrl.train.loop.publication import Publication
from asyncrl.train.loop.step_record import StepTimes
from asyncrl.train.step.serve_rows import share_batch
from asyncrl.train.step.step_batch import StepBatch, build_step_batch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.types import Group

if TYPE_CHECKING:
    from asyncrl.train.step.stream import StreamedStep

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
    came: bool = False
    """Whether groups of the batch have become ready since the last look."""


class Batches:
    """Takes batches. Its methods are collectives; `source` is the buffer on rank 0, None on all others."""

    def __init__(
        self,
        config: Config,
        engine: TrainEngine,
        objective: Objective,
        source: BatchSource | None,
        callbacks: Sequence[TrainerCallback],
        publication: Publication,
    ) -> None:
        self.config = config
        self.engine = engine
        self.source = source
        self.callbacks = callbacks
        self.publication = publication
        self.examiner = Examiner(objective.needs, config.buffer.max_staleness, engine.trunk_inputs)
        self.stopped = False
        """Whether the run ended because it was asked to."""
        self._planned = False
        self._ready = 0
        """Groups that were ready at the last look, on rank 0."""

    def gather(self, streamed: StreamedStep, times: StepTimes) -> Mapping[bytes, Group]:
        """Have a step train on groups as they arrive; return them by their encoded form, on rank 0."""
        from asyncrl.train.loop.schedule import gather

        return gather(
            streamed,
            self.source,
            self.examiner,
            times,
            self.config.buffer.wait_timeout_s,
            self._asked_to_stop,
            STOP_LOOK_S,
            self._has_tasks,
        )

    def take(self, version: int, arrived: Mapping[bytes, Group], times: StepTimes) -> StepBatch | None:
        """Return the batch on every rank; None at the end of the plan, or when the trainer was asked to stop. A
        batch of which groups cannot be trained is given back, and another one taken.

        arrived: groups by their encoded form that need not be decoded again. Raises `DeadlineError`, and `StaleError`
        for a token that the step may not train.
        """
        groups = None
        while groups is None:
            with times.waiting():
                taken, bodies = self._wait(version)
            self.stopped = taken.stop
            if taken.timed_out:
                raise DeadlineError(self._nothing_taken(version))
            if not taken.num_groups:
                return None
            with times.training():
                groups = self._examined(version, bodies, arrived)
        with times.training():
            return share_batch(self.engine, self._built(version, groups) if self.source is not None else None)

    def _built(self, version: int, groups: list[Group]) -> StepBatch:
        """Return the batch of a step, on rank 0."""
        step_groups = StepGroups(groups)
        for one in self.callbacks:
            one.groups(version, step_groups)
        return build_step_batch(
            step_groups.own, version, self.config.buffer.max_staleness, step_groups.further,
            step_groups.added_max_age,
        )  # fmt: skip

    def accepts(self, batch: StepBatch, settings: StepSettings) -> bool:
        """False when a callback refuses groups of the batch, which is then given back."""
        for one in self.callbacks:
            found = one.refuses(self.engine, batch, settings)
            if found is not None:
                if self.source is not None:
                    give_back(self.source, batch.step, found)
                self.engine.barrier()
                return False
        return True

    def _nothing_taken(self, version: int) -> str:
        return (
            f"step {version}: no batch within buffer.wait_timeout_s={self.config.buffer.wait_timeout_s:g}, and no "
            "group has become ready meanwhile; "
            f"{self.engine.on_first(self._groups_said)}; the rollout workers' logs say what they are waiting for"
        )

    def _examined(
        self, version: int, bodies: Sequence[bytes], arrived: Mapping[bytes, Group]
    ) -> list[Group] | None:
        """Return the groups of a batch, on rank 0; None on every rank where some cannot be trained: their workers are
        then set apart, and the batch is given back."""
        found = Examined()
        if self.source is not None:
            found = self.examiner.examine(bodies, version, arrived)
        unfit = self.engine.on_first(lambda: found.unfit)
        if not unfit:
            return found.groups
        if self.source is not None:
            give_back(self.source, version, Refusal(list(unfit), refusal(unfit, version)))
        self.engine.barrier()
        return None

    def _wait(self, version: int) -> tuple[Taken, Sequence[bytes]]:
        """Look for the batch again and again until it is there, no longer wanted, or no group of it has become ready
        for too long.

        Return what was found and, on rank 0, the encoded groups. The ranks meet at each look, so that none of them
        waits for rank 0 in one collective for as long as it takes.
        """
        left_s = self.config.buffer.wait_timeout_s
        while True:
            found, bodies = self._look(version, left_s)
            taken = Taken(*self.engine.broadcast(found))
            if not taken.again:
                return taken, bodies
            if taken.came:
                left_s = self.config.buffer.wait_timeout_s
            elif not taken.publishing and self._has_tasks():
                left_s -= STOP_LOOK_S

    def _look(self, version: int, left_s: float) -> tuple[Taken | None, Sequence[bytes]]:
        """Return what rank 0 finds within a moment; nothing on the others."""
        if self.source is None:
            return None, ()
        publishing = self.publication.under_way()
        if self._asked_to_stop():
            return Taken(stop=True), ()
        groups = self.source.take(version, min(left_s, STOP_LOOK_S))
        if groups is not None:
            return Taken(len(groups)), groups
        before, self._ready = self._ready, self.source.stats()["ready"]
        came = self._ready > before
        last = left_s <= STOP_LOOK_S and not publishing and not came and self._has_tasks()
        return Taken(timed_out=last, again=not last, publishing=publishing, came=came), ()

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
        """False until the launcher has planned tasks, which it may do long after the start: that time is no part of the
        wait for a batch."""
        if self.source is not None and not self._planned:
            counts = self.source.stats()
            self._planned = bool(counts["admitted"] or counts["pending"] or counts["plan_closed"])
        return self._planned

    def _asked_to_stop(self) -> bool:
        return any(one.asked_to_stop() for one in self.callbacks)


def give_back(source: BatchSource, step: int, found: Refusal) -> None:
    """Give the batch of a step back to the buffer, but for groups that are refused. On the first rank."""
    if not found.blames:
        log.warning("%s; the groups are sampled again", found.reason)
        source.fail_taken(step, found.groups, found.reason)
        return
    workers = (
        source.reject(step, found.groups, found.reason)
        if found.engines is None
        else source.reject(step, found.groups, found.reason, found.engines)
    )
    log.error("quarantined %s: %s", ", ".join(workers), found.reason)
