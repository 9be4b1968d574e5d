"""Puts engines to sleep, so that others can use their GPUs' memory, and wakes them (vLLM's sleep mode, level 1).

Asleep an engine has its weights in host memory and no KV cache. It accepts requests and answers them when it is awake.
"""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from asyncrl.credentials import authorization
from asyncrl.errors import InfrastructureError
from asyncrl.http_clients import open_url

log = logging.getLogger("asyncrl.engine")

SLEEP = "sleep?level=1&mode=keep"
"""Level 1 keeps the weights: an engine that misses the next version still has these. Running requests stay, and compute
their contexts again afterwards."""
WAKE = "wake_up"


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
            list(pool.map(lambda url: self._post(url, SLEEP if asleep else WAKE), self.urls))

    def _post(self, url: str, path: str) -> None:
        request = urllib.request.Request(f"{url}/{path}", None, self._headers, method="POST")
        try:
            with open_url(request, self.timeout_s) as reply:
                reply.read()
        except urllib.error.HTTPError as error:
            body = error.read()[:200].decode(errors="replace")
            raise InfrastructureError(f"engine {url}: {path}: HTTP {error.code}: {body}") from error
        except OSError as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ConnectionError):
                log.warning("engine %s: %s: %s; it is not running", url, path, reason)
                return
            raise InfrastructureError(
                f"engine {url}: {path}: {type(reason).__name__}: {reason}, within {self.timeout_s:g} s"
            ) from error
