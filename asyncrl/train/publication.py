"""Work beside the training, in a thread: a version on its way to the engines while the next batch is trained."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

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
