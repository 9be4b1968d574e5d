"""What `train.schedule` asks of the trainer besides taking a batch, see docs/schedules.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from asyncrl.buffer.counts import settled
from asyncrl.errors import DeadlineError
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.examination import Examined, Examiner
from asyncrl.train.loop.step_record import StepTimes
from asyncrl.train.step.stream import StreamedStep
from asyncrl.types import Group

SETTLE_EVERY_S = 0.02
"""How often the one-step-off schedule checks whether everything in flight has finished."""


class PeekSource(Protocol):
    """The part of the buffer that shows a step's groups before the batch is complete."""

    def peek(self, step: int, seen: Sequence[str], wait_s: float) -> tuple[Sequence[bytes], bool]: ...


def gather(
    streamed: StreamedStep,
    source: PeekSource | None,
    examiner: Examiner,
    times: StepTimes,
    timeout_s: float,
    asked_to_stop: Callable[[], bool] = lambda: False,
    look_s: float = float("inf"),
    has_tasks: Callable[[], bool] = lambda: True,
) -> dict[bytes, Group]:
    """Add groups as they become ready until the batch is complete, or none has become ready for `timeout_s`.

    Return on rank 0 the groups by their encoded form; those that cannot be trained are left to who takes the batch. A
    collective; `source`, `asked_to_stop` and `has_tasks` are rank
    0's. The last two are asked every `look_s`; the time begins when there are tasks.
    """
    engine, deadline = streamed.engine, time.monotonic() + timeout_s
    unfit: list[str] = []
    arrived: dict[bytes, Group] = {}
    over = False
    while not over:
        with times.waiting():
            shown: tuple[int, bool] | None = None
            examined = Examined()
            if source is not None:
                if not has_tasks():
                    deadline = time.monotonic() + timeout_s
                left_s = max(0.0, deadline - time.monotonic())
                known = [*streamed.seen, *unfit]
                bodies, complete = source.peek(streamed.version, known, min(left_s, look_s))
                examined = examiner.examine(bodies, streamed.version)
                unfit += examined.unfit
                if examined.groups:
                    deadline = time.monotonic() + timeout_s
                shown = (len(examined.groups), complete or left_s <= 0 or asked_to_stop())
            num_new, over = engine.broadcast(shown)
        with times.training():
            if num_new:
                streamed.add(examined.groups)
            arrived |= zip(examined.bodies, examined.groups, strict=True)
    return arrived


def settle(
    stats: Callable[[], dict[str, Any]],
    timeout_s: float,
    tell_every_s: float = float("inf"),
    tell: Callable[[], Any] = lambda: None,
) -> None:
    """Wait until nothing is in flight and no further group can be admitted. Raises `DeadlineError`.

    tell: called while it waits, so that others know.
    """
    deadline, shown_s = time.monotonic() + timeout_s, time.monotonic()
    while True:
        now = stats()
        if time.monotonic() - shown_s >= tell_every_s:
            tell()
            shown_s = time.monotonic()
        if settled(now):
            return
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"{now['in_flight']} groups were still in flight after buffer.wait_timeout_s={timeout_s:g}; "
                "the rollout workers' logs say what they are waiting for"
            )
        time.sleep(SETTLE_EVERY_S)


def settle_all(
    engine: TrainEngine, stats: Callable[[], dict[str, Any]] | None, timeout_s: float, each_s: float
) -> None:
    """See `settle`, on all ranks; `stats` is that of the buffer on rank 0, None on all others. Raises `DeadlineError`.

    each_s: how often the ranks meet meanwhile, so that none of them waits in one collective for as long as it takes.
    """
    if stats is not None:
        settle(stats, timeout_s, each_s, lambda: engine.broadcast(False))
    while not engine.broadcast(True if stats is not None else None):
        # Rank 0 is still waiting.
        pass
