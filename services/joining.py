"""Joining a running job: fetching its description, and announcing a member again and again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncrl.config import Config, parse_config
from asyncrl.credentials import Credentials, read_credentials
from asyncrl.endpoint import announced_url
from asyncrl.errors import AsyncRLError, ConfigError
from asyncrl.services.buffer.client import BufferClient
from asyncrl.services.engine.urls import policy_url
from asyncrl.types import MAIN_POLICY

log = logging.getLogger("asyncrl.launch")

BEAT_S = 5.0
READY_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Job:
    """A running job as its buffer describes it."""

    config: Config
    model: str
    weights_dir: str
    engines: list[str]
    envs: list[str]
    policies: list[str] = field(default_factory=list)
    """Further policies, as `asyncrl serve rollout --policy` takes them."""
    beside: dict[str, str] = field(default_factory=dict)
    """Addresses of what the workers have for themselves, by role."""

    @property
    def co_served_policies(self) -> dict[str, str]:
        """Buffers of the further policies that every engine of this job serves, too."""
        served = self.config.co_served_policies
        found = (read_policy(policy) for policy in self.policies)
        return {name: buffer for name, buffer, _ in found if name in served}


def read_policy(text: str) -> tuple[str, str, list[str]]:
    """Split `NAME=BUFFER_URL,ENGINE_URL,...` into name, buffer and the engines. Raises `ConfigError`."""
    name, _, urls = text.partition("=")
    buffer, _, engines = urls.partition(",")
    if not engines:
        raise ConfigError(f"--policy {text}: must look like NAME=BUFFER_URL,ENGINE_URL,...")
    return name, buffer, engines.split(",")


def fetch_job(buffer: str, token: str, role: str, name: str) -> tuple[Job, Credentials]:
    """Ask the buffer of a running job for its description, and for credentials to join it as `role`.

    token: a bearer token made with the run's token or its join token. Raises `UnavailableError`, `ConfigError`.
    """

    async def ask() -> tuple[dict[str, Any], str]:
        client = BufferClient(buffer, token, retry_s=10.0)
        try:
            return await client.job(), await client.enroll(role, name)
        finally:
            await client.close()

    found, credentials = asyncio.run(ask())
    config = parse_config(found.pop("config"), f"the job at {buffer}", strict=False)
    for changing in ("joined", "tokens", "settled", "left", "moved", "added", "retired"):
        del found[changing]
    return Job(config, **found), read_credentials(credentials, f"the job at {buffer}")


class Membership(threading.Thread):
    """Keeps a service registered with a job's buffer, from when it announces its address until `leave`.

    policy: the policy that an engine serves for this job.
    """

    def __init__(
        self, buffer: str, token: str, role: str, ready_file: Path, policy: str = MAIN_POLICY
    ) -> None:
        super().__init__(name="membership", daemon=True)
        self.policy = policy
        self.role = role
        self.ready_file = ready_file
        self._client = BufferClient(buffer, token, retry_s=BEAT_S)
        self._end = threading.Event()

    def leave(self) -> None:
        """Deregister."""
        self._end.set()
        self.join(10)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        url = ""
        while not self._end.is_set():
            if not url and (own := announced_url(self.ready_file)):
                url = policy_url(own, self.policy)
            if url:
                await self._try(self._client.join(self.role, url))
            await asyncio.to_thread(self._end.wait, BEAT_S if url else READY_EVERY_S)
        if url:
            await self._try(self._client.leave(url))
        await self._client.close()

    async def _try(self, call: Coroutine[Any, Any, object]) -> None:
        try:
            await call
        except AsyncRLError as error:
            log.warning("the job's buffer was not reached: %s", error)
