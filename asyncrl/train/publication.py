"""Work beside the training, in a thread: a version on its way to the engines while the next batch is trained."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def at_once(work: Callable[[], T]) -> Future[T]:
    """Do `work` here and now. Raises what it raises."""
    done: Future[T] = Future()
    done.set_result(work())
    return done


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Begin `work` in a thread that a process which ends does not wait for; the result raises what `work` raised."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
