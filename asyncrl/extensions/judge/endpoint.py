"""The judge's server over HTTP: requests in flight are bounded, counted, and repeated.

A reply in another form, and a request that is refused (HTTP 4xx), is asked for `ATTEMPTS` times. A server that is away
(no connection, no answer, HTTP 429 and 5xx) is waited for: it may be starting again, and an episode that fails
meanwhile costs a rollout.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import aiohttp

from asyncrl.clock import now_s
from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.budget import Away, Budget, Spent
from asyncrl.extensions.judge.settings import KEY
from asyncrl.outage_log import OutageLog

log = logging.getLogger("asyncrl.judge")

ATTEMPTS = 3
TIMEOUT_S = 60.0
MAX_IN_FLIGHT = 32
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
CHAT = "/chat/completions"
VERSION = "/v1"

T = TypeVar("T")


class Endpoint:
    """Sends requests to one address.

    budget: counts requests and tokens; None for no limit. count_tokens: whether replies must say how many they took.
    outage_s: how long a server that is away is waited for; it is asked `ATTEMPTS` times at least. timeout_s: of each
    request.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        budget: Budget | None = None,
        outage_s: float = 0.0,
        timeout_s: float = TIMEOUT_S,
        count_tokens: bool = False,
    ) -> None:
        self.timeout_s = timeout_s
        self.budget = budget
        self.count_tokens = count_tokens
        self.url = url
        self.outage_s = outage_s
        self.sent = 0
        """Requests sent so far, repeated ones included."""
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._limit = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._spent = False
        self._outage = OutageLog(log, f"the judge {url} is away")
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def ask(self, body: dict[str, Any], read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the answer; it raises `JudgeError` for one that is none.

        Raises `JudgeError` saying what the server said last.
        """
        async with self._limit:
            return await self._ask(body, read)

    async def _ask(self, body: dict[str, Any], read: Callable[[Any], T]) -> T:
        deadline, attempts, refused = now_s() + self.outage_s, 0, 0
        away, worked = False, False
        try:
            while True:
                attempts += 1
                try:
                    answer = read(await self._post(body))
                    worked = True
                    return answer
                except Spent:
                    raise
                except Away as error:
                    problem: JudgeError = error
                    self._outage.failed(error, away)
                    away = True
                    ends = attempts >= ATTEMPTS and now_s() >= deadline
                except JudgeError as error:
                    problem = error
                    refused += 1
                    ends = refused >= ATTEMPTS
                if ends:
                    raise JudgeError(f"judge {self.url}: {problem} ({attempts} attempts)") from problem
                await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** min(attempts - 1, 10), LONGEST_PAUSE_S))
        finally:
            if away:
                self._outage.ended(worked)

    async def _post(self, body: dict[str, Any]) -> Any:
        await self._spend()
        if self._http is None:
            self._http = aiohttp.ClientSession(
                headers=self._headers, connector=aiohttp.TCPConnector(limit=MAX_IN_FLIGHT)
            )
        timeout = aiohttp.ClientTimeout(total=self.timeout_s)
        try:
            async with self._http.post(self.url, json=body, timeout=timeout) as response:
                text = await response.text()
                if response.status != 200:
                    kind = Away if response.status in (408, 429) or response.status >= 500 else JudgeError
                    key = f"; the judge's API key is read from {KEY}" if response.status in (401, 403) else ""
                    raise kind(f"HTTP {response.status}: {text[:300]}{key}")
        except TimeoutError:
            raise Away(f"no answer within {self.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Away(f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error
        try:
            reply = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise JudgeError(f"{type(error).__name__}: {error}") from error
        if self.budget is not None and self.count_tokens:
            await self.budget.used(used_tokens(reply))
        return reply

    async def _spend(self) -> None:
        """Count a request that is about to be sent. Raises `Spent` where there may be no further one."""
        if self.budget is not None:
            try:
                await self.budget.spend()
            except Spent as error:
                if not self._spent:
                    log.error("judge %s: %s", self.url, error)
                self._spent = True
                raise Spent(f"judge {self.url}: {error}") from None
        self.sent += 1


def used_tokens(reply: Any) -> int:
    """Return the tokens that a reply says it took. Raises `JudgeError` for one that does not say."""
    usage = reply.get("usage") if isinstance(reply, dict) else None
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise JudgeError(
            f"the server reports no usage.total_tokens, which judge.max_total_tokens counts; got {usage!r:.100}"
        )
    return tokens


def judge_errors(answers: Iterable[object]) -> list[JudgeError]:
    """Return the failures among what was gathered with its exceptions. Raises the first exception that is a bug."""
    failed = [one for one in answers if isinstance(one, BaseException)]
    for error in failed:
        if not isinstance(error, JudgeError):
            raise error
    return [one for one in failed if isinstance(one, JudgeError)]


def chat_url(url: str) -> str:
    """Return the route of chat completions of a server, whose address people give with `/v1` or without."""
    base = url.rstrip("/")
    if base.endswith(CHAT):
        return base
    return f"{base}{CHAT}" if base.endswith(VERSION) else f"{base}{VERSION}{CHAT}"
