"""What a judge may cost: requests, and tokens as its server counts them.

A request is counted before it is sent, so that one whose worker dies is counted, too; tokens when the reply is there. A
run's workers count together, in their buffer's ledger (`spending`). Where there is no buffer, as in an evaluation, a
process counts for itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from asyncrl.errors import AsyncRLError, JudgeError
from asyncrl.extensions.judge.settings import JudgeConfig

ROUTE = "/v1/judge/budget"
Tell = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Away(JudgeError):
    """The judge's server, or the buffer that counts, does not serve now. The same request may be answered later."""


class Spent(JudgeError):
    """No further request may be sent."""


def spent_text(key: str, limit: int) -> str:
    """Return what is said of a budget that is spent."""
    return (
        f"judge.{key}={limit} are spent: no further request is sent, and episodes fail for want of a score; resume the "
        "run with more"
    )


class Budget(Protocol):
    """Counts what is asked of a judge."""

    async def spend(self) -> None:
        """Count a request that is about to be sent. Raises `Spent` where there may be no further one, `Away`."""
        ...

    async def used(self, tokens: int) -> None:
        """Count tokens of a reply. Raises `Away`."""
        ...


class OwnBudget:
    """Counts in this process alone. Implements `Budget`."""

    def __init__(self, config: JudgeConfig) -> None:
        self.config = config
        self.requests = self.tokens = 0

    async def spend(self) -> None:
        """See `Budget`."""
        if why := over(self.config, self.requests, self.tokens):
            raise Spent(why)
        self.requests += 1

    async def used(self, tokens: int) -> None:
        """See `Budget`."""
        self.tokens += tokens


class RunBudget:
    """Counts in the ledger of a run's buffer, with all its workers. Implements `Budget`.

    What this process has spent so far is told under a name that no other process has: a call that is repeated, since
    its answer was lost, counts nothing twice.
    """

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.name = secrets.token_hex(8)
        self.requests = self.tokens = 0
        self._turn = asyncio.Lock()

    async def spend(self) -> None:
        """See `Budget`."""
        async with self._turn:
            answer = await self._report(self.requests + 1)
            if answer["spent"]:
                raise Spent(answer["spent"])
            self.requests += 1

    async def used(self, tokens: int) -> None:
        """See `Budget`."""
        async with self._turn:
            self.tokens += tokens
            await self._report(self.requests)

    async def _report(self, requests: int) -> dict[str, Any]:
        body = {"client": self.name, "requests": requests, "tokens": self.tokens}
        try:
            return await self.tell(ROUTE, body)
        except AsyncRLError as error:
            raise Away(f"the buffer, which counts the run's requests, cannot be asked: {error}") from error


def over(config: JudgeConfig, requests: int, tokens: int) -> str:
    """Return why no request may follow so many requests and tokens; "" where one may."""
    if config.max_requests and requests >= config.max_requests:
        return spent_text("max_requests", config.max_requests)
    if config.max_total_tokens and tokens >= config.max_total_tokens:
        return spent_text("max_total_tokens", config.max_total_tokens)
    return ""
