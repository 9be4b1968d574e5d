"""What `train.schedule` asks of the trainer beside taking a batch, see docs/schedules.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from asyncrl.data.codec import decode_group, encode_group, pack, unpack
from asyncrl.errors import DeadlineError
from asyncrl.train.stream import StreamedStep
from asyncrl.types import Group

SETTLE_EVERY_S = 0.02
"""How often the one-step-off schedule looks whether everything in flight has finished."""


class PeekSource(Protocol):
    """The part of the buffer that shows a step's groups before the batch is complete."""

    def peek(self, step: int, seen: Sequence[str], wait_s: float) -> tuple[Sequence[Group], bool]: ...


def gather(
    streamed: StreamedStep,
    source: PeekSource | None,
    timeout_s: float,
    asked_to_stop: Callable[[], bool] = lambda: False,
    look_s: float = float("inf"),
) -> float:
    """Add groups as they become ready until the batch is complete or `timeout_s` passed; return the seconds waited.

    A collective; `source` and `asked_to_stop`, which is asked every `look_s`, are rank 0's.
    """
    engine, waited_s = streamed.engine, 0.0
    deadline = time.monotonic() + timeout_s
    while True:
        start = time.perf_counter()
        message = None
        if engine.rank == 0:
            assert source is not None
            left_s = max(0.0, deadline - time.monotonic())
            groups, complete = source.peek(streamed.version, streamed.seen, min(left_s, look_s))
            over = complete or left_s <= 0 or asked_to_stop()
            message = pack({"groups": [encode_group(g) for g in groups], "over": over})
        answer = unpack(engine.broadcast_bytes(message))
        waited_s += time.perf_counter() - start
        if answer["groups"]:
            streamed.add([decode_group(body) for body in answer["groups"]])
        if answer["over"]:
            return waited_s


def settle(stats: Callable[[], dict[str, Any]], timeout_s: float) -> None:
    """Wait until nothing is in flight and no further group can be admitted. Raises `DeadlineError`."""
    deadline = time.monotonic() + timeout_s
    while True:
        now = stats()
        full = now["ready"] + now["taken"] >= now["slots"]
        if not now["in_flight"] and (full or (now["plan_closed"] and not now["pending"])):
            return
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"{now['in_flight']} groups were still in flight after buffer.wait_timeout_s={timeout_s:g}; "
                "the rollout workers' logs say what they are waiting for"
            )
        time.sleep(SETTLE_EVERY_S)
