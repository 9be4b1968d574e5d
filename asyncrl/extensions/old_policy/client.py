"""The trainer's client of the old-policy process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from asyncrl.extensions.old_policy.messages import logprobs_from_map, rows_to_map
from asyncrl.extensions.old_policy.model import Row
from asyncrl.services.http.client import HttpClient


class OldPolicyClient:
    """Implements `asyncrl.extensions.old_policy.old_policies.OldPolicyService`.

    timeout_s: how long a batch may take. retry_s: how long the process may be away, as while it is started again.
    """

    def __init__(self, url: str, token: str, timeout_s: float, retry_s: float) -> None:
        self.url = url
        self.token = token
        self.timeout_s = timeout_s
        self.retry_s = retry_s

    def score(self, rows: Sequence[Row]) -> list[np.ndarray]:
        """See `OldPolicyService`. Raises `UnavailableError` without an answer in time, and `InputError`."""
        return asyncio.run(self._score(rows))

    async def _score(self, rows: Sequence[Row]) -> list[np.ndarray]:
        client = HttpClient(self.url, self.token, self.retry_s)
        try:
            return logprobs_from_map(await client.post("/v1/score", rows_to_map(rows), self.timeout_s))
        finally:
            await client.close()
