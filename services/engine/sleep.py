"""Puts engines to sleep, so that others can use their GPUs' memory, and wakes them (vLLM's sleep mode, level 1).

Asleep an engine has its weights in host memory and no KV cache. It accepts requests and answers them when it is awake;
one on loan refuses them and gives up those that run, so that others answer (`asyncrl.weights.vllm_lent`).
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgpack

from asyncrl.credentials import authorization
from asyncrl.errors import InfrastructureError
from asyncrl.http_clients import open_url
from asyncrl.train.loan import Returned

T = TypeVar("T")
log = logging.getLogger("asyncrl.engine")

SLEEP = "sleep?level=1&mode=keep"
"""Level 1 keeps the weights: an engine that misses the next version still has these. Running requests stay, and compute
their contexts again afterwards."""
WAKE = "wake_up"
LEND = "asyncrl/v1/lent"


class _Switch:
    """Calls all engines at once. timeout_s: for each call to an engine."""

    def __init__(self, urls: Sequence[str], token: str, timeout_s: float) -> None:
        self.urls = list(urls)
        self.timeout_s = timeout_s
        self._headers = authorization(token)

    def _each(self, call: Callable[[str], T]) -> list[T]:
        with ThreadPoolExecutor(max_workers=len(self.urls)) as pool:
            return list(pool.map(call, self.urls))

    def _post(self, url: str, path: str, body: Any = None) -> bytes | None:
        """Return an engine's answer; None where it refuses the connection. Raises `InfrastructureError`.

        body: sent as msgpack.
        """
        data, headers = None, self._headers
        if body is not None:
            data, headers = msgpack.packb(body), headers | {"Content-Type": "application/msgpack"}
        request = urllib.request.Request(f"{url}/{path}", data, headers, method="POST")
        try:
            with open_url(request, self.timeout_s) as reply:
                return bytes(reply.read())
        except urllib.error.HTTPError as error:
            said = error.read()[:200].decode(errors="replace")
            raise InfrastructureError(f"engine {url}: {path}: HTTP {error.code}: {said}") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ConnectionError):
                log.warning("engine %s: %s: %s; it is not running", url, path, reason)
                return None
            raise InfrastructureError(
                f"engine {url}: {path}: {type(reason).__name__}: {reason}, within {self.timeout_s:g} s"
            ) from error


class SleepSwitch(_Switch):
    """Puts all engines to sleep or wakes them."""

    def __call__(self, asleep: bool) -> None:
        """Return when every engine sleeps or is awake. Raises `InfrastructureError`.

        An engine that refuses the connection has died: when it is started again it is awake.
        """
        self._each(lambda url: self._post(url, SLEEP if asleep else WAKE))


class LoanSwitch(_Switch):
    """Wakes the engines on loan, or puts them to sleep."""

    def __call__(self, asleep: bool) -> Returned:
        """Return when every engine sleeps, or is awake with the newest weights.

        Raises `InfrastructureError` when one does not go to sleep; one that does not wake sleeps on, and one that
        refuses the connection has died: when it is started again it sleeps.
        """
        answers = self._each(lambda url: self._switch(url, asleep))
        tokens = sum(answer["tokens"] for answer in answers if answer is not None)
        return Returned(tokens, None not in answers)

    def _switch(self, url: str, asleep: bool) -> dict[str, int] | None:
        try:
            answer = self._post(url, LEND, {"asleep": asleep})
        except InfrastructureError as error:
            if asleep:
                raise
            log.warning("%s; it sleeps on", error)
            return None
        return None if answer is None else msgpack.unpackb(answer)
