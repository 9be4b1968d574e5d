"""Lets callers wait for answers that are written down somewhere else."""

from __future__ import annotations

import asyncio


class Answers:
    """Who waits for which request."""

    def __init__(self) -> None:
        self._events: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, int] = {}

    def arrived(self, request_id: str) -> None:
        """Wake those who wait for a request: its answer has been written down."""
        if (event := self._events.get(request_id)) is not None:
            event.set()

    async def wait(self, request_id: str, timeout_s: float) -> None:
        """Wait until a request's answer has arrived, at most `timeout_s`."""
        event = self._events.setdefault(request_id, asyncio.Event())
        self._waiting[request_id] = self._waiting.get(request_id, 0) + 1
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            self._waiting[request_id] -= 1
            if not self._waiting[request_id]:
                del self._events[request_id], self._waiting[request_id]
