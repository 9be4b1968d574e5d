"""One environment service: operations that are ready together go in one request, answers are read as they come.

A dropped connection loses nothing: operations without an answer are sent again, and the service recognizes the
repetition. Each operation has a deadline of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from asyncrl import errors
from asyncrl.credentials import bearer
from asyncrl.errors import (
    AsyncRLError,
    EnvironmentFailure,
    EpisodeError,
    InfrastructureError,
    InputError,
    UnavailableError,
)
from asyncrl.services.env.lease import LeaseKeeper
from asyncrl.services.http.batching import RequestBatcher
from asyncrl.services.http.client import FIRST_PAUSE_S, LONGEST_PAUSE_S
from asyncrl.services.http.streams import StreamClient

MAX_OPERATIONS = 256
RETRY_S = 10.0
"""How long a service that does not answer is retried."""
SUSPECT_S = 5.0
RETRY_AFTER_S = 1.0


class Full(InfrastructureError):
    """The service has no room now: every place is taken, or no worker is ready (`stuck_s` is None then)."""

    def __init__(self, message: str, retry_after_s: float, stuck_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.stuck_s = stuck_s
        """Seconds since a place was last freed."""


@dataclass(slots=True)
class _Waiting:
    operation: dict[str, Any]
    answer: asyncio.Future[dict[str, Any]]
    timeout_s: float
    deadline: float


class EnvServiceClient:
    """Batches operations for one address.

    batch_delay_s: minimum seconds between two requests, and between two pieces of an answer; operations that become
    ready meanwhile are sent together. 0 batches those that become ready in one pass of the event loop.
    """

    def __init__(
        self, url: str, token: str | None = None, retry_s: float = RETRY_S, batch_delay_s: float = 0.0
    ) -> None:
        self.http = StreamClient(url, bearer(token, "env"))
        self.retry_s = retry_s
        self._operations = RequestBatcher[_Waiting](self._call, MAX_OPERATIONS, batch_delay_s)
        self._renewals = RequestBatcher[_Waiting](self._call, MAX_OPERATIONS)
        self._suspect_until = 0.0
        self.leases = LeaseKeeper(self._renew, self.http.url)

    @property
    def suspect(self) -> bool:
        """True for a few seconds after it could not be reached."""
        return time.monotonic() < self._suspect_until

    async def operate(self, operation: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Return the operation's result.

        Raises `Full`, `EnvironmentFailure`, another `EpisodeError` the environment named, or `InfrastructureError`
        for everything else: an unreachable or silent service, an ended session, a lost worker.
        """
        waiting = _waiting(operation, timeout_s)
        self._operations.add(waiting)
        return await waiting.answer

    def abandon(self, key: str) -> None:
        """Have the session of an abandoned open closed, without waiting for that."""
        waiting = _waiting({"op": "abandon", "key": key}, self.retry_s)
        # Errors are ignored: the session ends with its lease.
        waiting.answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
        self._renewals.add(waiting)

    async def close(self) -> None:
        """Cancel running operations and close connections."""
        await self.leases.close()
        for operations in (self._operations, self._renewals):
            _fail(await operations.close(), self._closed())
        await self.http.close()

    def _closed(self) -> str:
        return f"{self.http.url}: the client was closed"

    async def _renew(self, sessions: Sequence[str], timeout_s: float) -> Sequence[str]:
        """Renew without waiting for `batch_delay_s`; return the sessions that have ended."""
        waiting = _waiting({"op": "renew", "sessions": list(sessions)}, timeout_s)
        self._renewals.add(waiting)
        return (await waiting.answer)["gone"]

    async def _call(self, waiting: list[_Waiting]) -> None:
        """Repeat the request until every operation is answered or cancelled."""
        give_up, pause_s = 0.0, FIRST_PAUSE_S
        timers = self._set_timers(waiting)
        try:
            while waiting := [w for w in waiting if not w.answer.done()]:
                start = time.monotonic()
                try:
                    await self._exchange(waiting)
                    return
                except UnavailableError as error:
                    now = time.monotonic()
                    self._suspect_until = now + SUSPECT_S
                    # A connection that worked for a while, or answered something, resets the count.
                    if not give_up or now - start > LONGEST_PAUSE_S or any(w.answer.done() for w in waiting):
                        give_up, pause_s = now + self.retry_s, FIRST_PAUSE_S
                    if now >= give_up:
                        _fail(waiting, str(error))
                        return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        except InputError as error:
            left = [w for w in waiting if not w.answer.done()]
            if len(left) == 1:
                _fail(left, str(error))
            elif left:
                # The whole batch was refused, for example as too large. Smaller ones show which operation is at fault.
                await asyncio.gather(self._call(left[::2]), self._call(left[1::2]))
        except AsyncRLError as error:
            _fail(waiting, str(error))
        except asyncio.CancelledError:
            _fail(waiting, self._closed())
            raise
        finally:
            for timer in timers:
                timer.cancel()

    def _set_timers(self, waiting: list[_Waiting]) -> list[asyncio.TimerHandle]:
        """End each operation at its deadline. One timer serves all with equal time, which most have."""
        groups: dict[float, list[_Waiting]] = {}
        for one in waiting:
            groups.setdefault(one.timeout_s, []).append(one)
        loop = asyncio.get_running_loop()
        return [loop.call_later(timeout_s, self._expire, group) for timeout_s, group in groups.items()]

    def _expire(self, waiting: list[_Waiting]) -> None:
        for one in waiting:
            if not one.answer.done():
                self._suspect_until = time.monotonic() + SUSPECT_S
                what = f"no answer to {one.operation['op']} within {one.timeout_s:.3g} s"
                _fail([one], f"{self.http.url}: {what}")

    async def _exchange(self, waiting: list[_Waiting]) -> None:
        """Send the operations once and deliver the answers. Raises `UnavailableError` unless all are answered."""
        body = {"operations": [w.operation for w in waiting], "gather_s": self._operations.delay_s}
        timeout_s = max(0.1, max(w.deadline for w in waiting) - time.monotonic())
        left = len(waiting)
        async with aclosing(self.http.stream("/v1/batch", body, timeout_s)) as answers:
            async for number, result in answers:
                left -= 1
                _settle(waiting[number], result)
        if left:
            raise UnavailableError(f"{self.http.url}: the answer ended early")


def _waiting(operation: dict[str, Any], timeout_s: float) -> _Waiting:
    answer = asyncio.get_running_loop().create_future()
    return _Waiting(operation, answer, timeout_s, time.monotonic() + timeout_s)


def _settle(waiting: _Waiting, result: dict[str, Any]) -> None:
    if waiting.answer.done():
        return
    if "error" not in result:
        waiting.answer.set_result(result)
    elif "retry_after_s" in result:
        waiting.answer.set_exception(
            Full(result["message"], float(result["retry_after_s"]), result.get("stuck_s"))
        )
    else:
        waiting.answer.set_exception(sorted_failure(result["error"], result["message"]))


def _fail(waiting: list[_Waiting], why: str) -> None:
    for one in waiting:
        if not one.answer.done():
            one.answer.set_exception(InfrastructureError(why))


def sorted_failure(name: str, message: str) -> EpisodeError:
    """Classify an error by the name of its class: an environment's own failure, otherwise infrastructure."""
    if name in ("EnvironmentFailure", "InputError", "ConfigError"):
        return EnvironmentFailure(message)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, EpisodeError):
        return kind(message)
    return InfrastructureError(message)
