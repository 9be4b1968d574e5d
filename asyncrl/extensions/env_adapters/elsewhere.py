"""Episodes that are played in a Python of their own, for libraries that do not fit beside asyncrl's packages.

A helper process of another interpreter (`episode_service.py`) plays all episodes of this process. What is asked of the
model there is shown to the policy, and its turns are the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
from pathlib import Path
from typing import Any

import httpx

from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.helper_process import HelperProcess
from asyncrl.http_clients import async_client

FOLDER = Path(__file__).parent
START_S = 180.0
LIST_S = 600.0
"""A library may fetch or make its data when its tasks are first listed."""
CLOSE_S = 15.0


@functools.cache
def helper_process(python: str, player: str, library: str) -> HelperProcess:
    """Return the process with a player of this folder in this interpreter, shared by all episodes of this process."""
    missing = (
        f"{library} did not start in {python}: make an environment for it, and install {library.partition('.')[0]} "
        "there (docs/adapters.md); its error is in this process's log"
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ASYNCRL_")}
    argv = [python, "-I", str(FOLDER / "episode_service.py"), str(FOLDER / player)]
    return HelperProcess(argv, missing, variables, START_S)


def ask_helper(helper: HelperProcess, request: dict[str, Any], who: str, setting: str) -> dict[str, Any]:
    """Return the helper's answer to a request that is no turn of an episode.

    who: the environment, for errors. Raises `ConfigError` naming the setting where the helper refuses, and
    `InfrastructureError` where it gives no answer.
    """
    answer: dict[str, Any] = json.loads(helper.ask(request, LIST_S) or "{}")
    if "refused" in answer:
        raise ConfigError(f"{setting}: {who} cannot be loaded: {answer['refused']}")
    if not answer:
        raise InfrastructureError(
            f"{who}: its process gave no answer within {LIST_S:g} s, or died; its error is in this process's log"
        )
    return answer


class EpisodeElsewhere:
    """One episode in a helper process. who: the environment, for errors."""

    def __init__(self, helper: HelperProcess, who: str, setting: str) -> None:
        self.helper, self.who, self.setting = helper, who, setting
        self.id = secrets.token_hex(8)
        self._client: httpx.AsyncClient | None = None

    async def open(self, source: dict[str, Any], row: int) -> dict[str, Any]:
        """Start the episode of a task; return what is asked first, with more that the player says."""
        address = await asyncio.to_thread(ask_helper, self.helper, {"address": True}, self.who, self.setting)
        url = f"http://127.0.0.1:{address['port']}"
        headers = {"Authorization": f"Bearer {address['key']}"}
        self._client = async_client(url, base_url=url, headers=headers, timeout=None)
        return await self._post("/episodes", {"id": self.id, "source": source, "row": row})

    async def step(self, message: dict[str, Any]) -> dict[str, Any]:
        """Give the policy's message; return what follows.

        Raises `InfrastructureError` if the process is gone, `EnvironmentFailure` for what it refuses.
        """
        return await self._post(f"/episodes/{self.id}", message)

    async def close(self) -> None:
        """End the episode where it is still being played."""
        if self._client is not None:
            with contextlib.suppress(httpx.HTTPError):
                await self._client.delete(f"/episodes/{self.id}", timeout=CLOSE_S)
            await self._client.aclose()

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self._client is not None
        try:
            response = await self._client.post(path, json=body)
            response.raise_for_status()
            answer: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise InfrastructureError(
                f"{self.who}: its process gave no answer ({type(error).__name__}: {error})"
            ) from error
        if "refused" in answer:
            raise EnvironmentFailure(f"{self.who}: {answer['refused']}")
        return answer
