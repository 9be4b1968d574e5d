"""A version's way to the engines and into the buffer: at once, or in a thread while the next batch is trained."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeVar

from asyncrl.data.table import TokenValues
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callbacks import TrainerCallback
from asyncrl.train.loop.step_record import publish_metrics
from asyncrl.train.step.step import StepReport
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.weights.publish import FilePublisher, PublishReport

T = TypeVar("T")


def at_once(work: Callable[[], T], future: Future[T]) -> Future[T]:
    """Do `work` here and now, as what `future` stands for. Raises what it raises."""
    _do(work, future)
    future.result()
    return future


def in_thread(work: Callable[[], T], future: Future[T], name: str) -> Future[T]:
    """Begin `work` in a thread that a process which ends does not wait for; `future` raises what it raised."""
    threading.Thread(target=_do, args=(work, future), name=name, daemon=True).start()
    return future


def _do(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)


class Publisher(Protocol):
    """Brings new weights to the engines. Its calls are collectives."""

    def publish(self, version: int, engine: TrainEngine) -> PublishReport: ...

    def gather(self, version: int, engine: TrainEngine) -> Callable[[], PublishReport]:
        """Copy the weights; return what brings the copy to the engines, for a thread beside the training."""
        ...

    def ask(self, question: Callable[[FilePublisher], Coroutine[Any, Any, T]]) -> T:
        """Return what is asked of the engines by their publisher. No collective: only the first rank calls it."""
        ...


class Ledger(Protocol):
    """The part of the buffer that accounts for versions, on rank 0."""

    def commit(self, version: int) -> None: ...

    def replan(self, version: int) -> int: ...

    def stats(self) -> dict[str, Any]: ...


class Publication:
    """Brings versions to the engines, commits them in the buffer and has their steps recorded, one after the other.

    source: the buffer on rank 0, None on all others.
    """

    def __init__(
        self,
        engine: TrainEngine,
        publisher: Publisher,
        source: Ledger | None,
        callbacks: Sequence[TrainerCallback],
    ) -> None:
        self.engine = engine
        self.publisher = publisher
        self.source = source
        self.callbacks = callbacks
        self._published: Future[PublishReport] | None = None
        """On rank 0, a version's way to the engines and into the buffer in the background."""
        self._recorded: Future[None] | None = None
        """On rank 0, what records the newest version's step once that is committed."""
        self._pauses_s: list[float] = []

    def publish(
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
        fresh, values = list(batch.played), token_values(batch, report)

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
            self._pauses_s += published.result().pause_s
        left_out = [batch.group_ids[i] for i in report.left_out]
        for one in self.callbacks:
            one.trained(batch, fresh, left_out, report.went_back_to is not None)
        return published

    def record(
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

    def wait(self) -> None:
        """Wait until a version that is on its way is committed and recorded. Raises what kept it from that."""
        if self._published is not None:
            self._pauses_s += self._published.result().pause_s
        if self._recorded is not None:
            self._recorded.result()
        self._published = self._recorded = None

    def under_way(self) -> bool:
        """True while a version is on its way. Raises what ended that, so that no batch is waited for in vain."""
        for work in (self._published, self._recorded):
            if work is not None and work.done():
                work.result()
        return self._published is not None and not self._published.done()

    def take_pauses_s(self) -> list[float]:
        """Return how long engines paused for the versions that have been published since this was asked last."""
        found, self._pauses_s = self._pauses_s, []
        return found


def _buffer_metrics(stats: dict[str, Any]) -> dict[str, int | float]:
    return {f"buffer/{name}": value for name, value in stats.items() if isinstance(value, int | float)}


def token_values(batch: StepBatch, report: StepReport) -> TokenValues:
    """Return what a step computed for the tokens of its rows, for the table. On the first rank."""
    columns = {
        name: [values.row(row).numpy() for row in range(batch.num_rows)]
        for name, values in report.token_values.items()
    }
    return TokenValues(batch.trajectories, columns, report.turn_rewards)
