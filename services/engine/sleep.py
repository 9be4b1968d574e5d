"""Puts engines to sleep, so that others can use their GPUs' memory, and wakes them (vLLM's sleep mode, level 1).

Asleep an engine has its weights in host memory and no KV cache. It accepts requests and answers them when it is awake;
one on loan refuses them and gives up those that run, so that others answer (`asyncrl.weights.vllm_lent`).
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgpack

from asyncrl.credentials import authorization
from asyncrl.errors import InfrastructureError
from asyncrl.tls import client_context
from asyncrl.train.loan import Returned

log = logging.getLogger("asyncrl.engine")

SLEEP = "sleep?level=1&mode=keep"
"""Level 1 keeps the weights: an engine that misses the next version still has these. Running requests stay, and compute
their contexts again afterwards."""
WAKE = "wake_up"
LEND = "asyncrl/v1/lent"


class SleepSwitch:
    """Puts all engines to sleep or wakes them. timeout_s: for each call to an engine."""

    def __init__(self, urls: Sequence[str], token: str, timeout_s: float) -> None:
        self.urls = list(urls)
        self.timeout_s = timeout_s
        self._headers = authorization(token)

    def __call__(self, asleep: bool) -> None:
        """Return when every engine sleeps or is awake. Raises `InfrastructureError`.

        An engine that refuses the connection has died: when it is started again it is awake.
        """
        with ThreadPoolExecutor(max_workers=len(self.urls)) as pool:
            list(
                pool.map(
                    lambda url: _post(url, SLEEP if asleep else WAKE, self._headers, self.timeout_s),
                    self.urls,
                )
            )


class LoanSwitch:
    """Wakes the engines on loan, or puts them to sleep. timeout_s: for each call to an engine."""

    def __init__(self, urls: Sequence[str], token: str, timeout_s: float) -> None:
        self.urls = list(urls)
        self.timeout_s = timeout_s
        self._headers = authorization(token)

    def __call__(self, asleep: bool) -> Returned:
        """Return when every engine sleeps, or is awake with the newest weights.

        Raises `InfrastructureError` when one does not go to sleep; one that does not wake sleeps on, and one that
        refuses the connection has died: when it is started again it sleeps.
        """
        with ThreadPoolExecutor(max_workers=len(self.urls)) as pool:
            answers = list(pool.map(lambda url: self._switch(url, asleep), self.urls))
        tokens = sum(answer["tokens"] for answer in answers if answer is not None)
        return Returned(tokens, None not in answers)

    def _switch(self, url: str, asleep: bool) -> dict[str, int] | None:
        try:
            headers = self._headers | {"Content-Type": "application/msgpack"}
            answer = _post(url, LEND, headers, self.timeout_s, msgpack.packb({"asleep": asleep}))
        except InfrastructureError as error:
            if asleep:
                raise
            log.warning("%s; it sleeps on", error)
            return None
        return None if answer is None else msgpack.unpackb(answer)


def _post(
    url: str, path: str, headers: dict[str, str], timeout_s: float, body: bytes | None = None
) -> bytes | None:
    """Return an engine's answer; None where it refuses the connection. Raises `InfrastructureError`."""
    request = urllib.request.Request(f"{url}/{path}", body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=client_context()) as reply:
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
            f"engine {url}: {path}: {type(reason).__name__}: {reason}, within {timeout_s:g} s"
        ) from error
