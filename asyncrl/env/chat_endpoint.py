"""A language model that plays a part of an environment, such as its user, behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx

from asyncrl.errors import EnvironmentFailure, InfrastructureError
from asyncrl.http_clients import async_client

ATTEMPTS = 3
PAUSE_S = 0.5
KEY_VARIABLE = "ASYNCRL_SIMULATOR_KEY"
"""Environment variable with the endpoint's bearer key."""


class ChatEndpoint:
    """Asks for chat completions. One client per event loop: `close` before the loop ends.

    who: the environment, for errors. url: as "http://host:port/v1".
    """

    def __init__(self, who: str, url: str, timeout_s: float) -> None:
        self.who, self.url, self.timeout_s = who, url.rstrip("/"), timeout_s
        self._client: httpx.AsyncClient | None = None

    @property
    def longest_s(self) -> float:
        """How long one request may take with all its attempts."""
        return ATTEMPTS * self.timeout_s + PAUSE_S * sum(range(ATTEMPTS))

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the message of a completion's first choice.

        Raises `EnvironmentFailure` if the endpoint refuses the request or answers with something else,
        `InfrastructureError` if it cannot be reached or stays too busy.
        """
        return message_of(await self._post(request), self.who, self.url)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, request: dict[str, Any]) -> Any:
        if self._client is None:
            key = os.environ.get(KEY_VARIABLE, "")
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._client = async_client(self.url, headers=headers, timeout=self.timeout_s)
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S * attempt)
            try:
                response = await self._client.post(f"{self.url}/chat/completions", json=request)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if response.status_code < 400:
                try:
                    return response.json()
                except ValueError as error:
                    raise EnvironmentFailure(
                        f"{self.who}: {self.url} replied without JSON: {error}"
                    ) from error
            problem = f"status {response.status_code}: {response.text[:300]}"
            if response.status_code in (401, 403):
                problem += f" (the key is read from {KEY_VARIABLE})"
            if response.status_code < 500 and response.status_code not in (408, 429):
                raise EnvironmentFailure(f"{self.who}: {self.url} refused the request: {problem}")
        raise InfrastructureError(
            f"{self.who}: {self.url} did not answer after {ATTEMPTS} attempts: {problem}"
        )


def message_of(body: Any, who: str, url: str) -> dict[str, Any]:
    """Return the message of a completion's first choice. Raises `EnvironmentFailure` for anything else."""
    try:
        message = body["choices"][0]["message"]
    except (KeyError, IndexError, TypeError) as error:
        raise EnvironmentFailure(f"{who}: {url} gave no chat completion: {body!r:.300}") from error
    if not isinstance(message, dict):
        raise EnvironmentFailure(f"{who}: {url} gave no chat completion: {body!r:.300}")
    return message
