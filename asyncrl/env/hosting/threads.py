"""A thread for each session that may block, so that no session waits for another's."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any


class SessionThread:
    """Runs calls one after the other on one daemon thread.

    One thread for a whole session lets an environment hold thread-bound resources (a sqlite connection, a browser
    driven synchronously). A daemon thread that never returns does not keep the process alive.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, method: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `method` after the calls queued before; return a future with its result or exception."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put((future, method))
        return future

    def stop(self) -> None:
        """End the thread after the queued calls. Does not wait."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, method = call
            result: Any = None
            error: BaseException | None = None
            try:
                result = method()
            except StopIteration as stop:
                # A future cannot hold it.
                error = RuntimeError(f"StopIteration: {stop}")
            except BaseException as raised:
                error = raised
            # The loop may be closed by now, so nobody waits anymore.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
        return
    future.set_exception(error)
    # Mark it as retrieved: nobody reads the result of a call that exceeded its deadline.
    future.exception()
