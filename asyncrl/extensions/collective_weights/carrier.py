"""Carries a weight file to engines over a group, from the trainer's first rank.

The group stays from one version to the next as long as the same engines are in it; an engine that was restarted, joined
or lost makes a new one. An engine that is lost on the way costs the others a second attempt without it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from asyncrl.extensions.collective_weights.group import (
    Group,
    GroupPlace,
    choose_backend,
    device_name,
    listening,
    send_file,
)
from asyncrl.weights.carrier import (
    ANSWER_S,
    SLOWEST_BYTES_PER_S,
    advertised,
    ask_each,
    carry_limit_s,
)
from asyncrl.weights.chunks import WHOLE
from asyncrl.weights.files import WeightFile
from asyncrl.weights.transport import EngineControl

if TYPE_CHECKING:
    from asyncrl.config import Config
    from asyncrl.credentials import Credentials

log = logging.getLogger("asyncrl.weights")


class CollectiveCarrier:
    """Sends files over groups. device: this process's. timeout_s: for joining a group, and for each bucket."""

    def __init__(self, device: torch.device, timeout_s: float = 30.0) -> None:
        self.device = device
        self.timeout_s = timeout_s
        self.groups = 0
        """How many were formed."""
        self.sent_bytes = 0
        self._group: Group | None = None
        self._members: list[str] = []
        self._one_at_a_time = asyncio.Lock()

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """Send `file`; return the engines that did not get it, with the reason. Raises no error of an engine."""
        missed: dict[str, str] = {}
        async with self._one_at_a_time:
            try:
                return await self._carry(file, engines, missed)
            except BaseException:
                # Also of one who waits no longer: what the group is in the middle of must not meet the next file.
                self.close()
                raise

    async def _carry(
        self, file: WeightFile, engines: Sequence[EngineControl], missed: dict[str, str]
    ) -> dict[str, str]:
        left, broken = list(engines), ""
        for _ in range(len(engines) + 1):
            left = [engine for engine in left if engine.url not in missed]
            answers = await ask_each(left, "weights/expect", file.to_json(), carry_limit_s(file), missed)
            left = [engine for engine in left if engine.url in answers]
            if not left:
                return missed
            kinds = {file.kind_for(answers[engine.url]["base"]) for engine in left}
            kind = kinds.pop() if len(kinds) == 1 else WHOLE
            broken = await self._join(left, answers, missed) or await self._send(file, kind, left, missed)
            if not broken:
                return missed
            self.close()
            log.warning("version %d is sent again, since the group broke: %s", file.version, broken)
        return missed | {engine.url: f"no group held: {broken}" for engine in left}

    def close(self) -> None:
        """Give the group up; the next file forms another."""
        if self._group is not None:
            self._group.abort()
        self._group, self._members = None, []

    async def _join(
        self, engines: Sequence[EngineControl], answers: dict[str, dict[str, Any]], missed: dict[str, str]
    ) -> str:
        """Have this process and the engines in one group; return why that failed, "" if it did not."""
        urls = [engine.url for engine in engines]
        name = self._group.place.name if self._group is not None else ""
        if name and urls == self._members and all(answers[url]["group"] == name for url in urls):
            return ""
        self.close()
        devices = [device_name(self.device)]
        first_ranks = []
        for url in urls:
            first_ranks.append(len(devices))
            devices += answers[url]["devices"]
        host = await asyncio.to_thread(advertised, urls)
        with listening(host) as listener:
            port = listener.getsockname()[1]

            def place(rank: int) -> GroupPlace:
                return GroupPlace(
                    name, host, port, rank, len(devices), choose_backend(devices), self.timeout_s
                )

            name = secrets.token_hex(16)
            mine = asyncio.ensure_future(asyncio.to_thread(Group, place(0), self.device, listener))
            bodies = [asdict(place(rank)) for rank in first_ranks]
            joined = await ask_each(engines, "weights/join", bodies, 3 * self.timeout_s, missed)
            broken = _first_error(joined)
            try:
                self._group, self._members = await mine, urls
            except (RuntimeError, OSError) as error:
                broken = broken or f"{type(error).__name__}: {error}"
        self.groups += 1
        return broken

    async def _send(
        self, file: WeightFile, kind: str, engines: Sequence[EngineControl], missed: dict[str, str]
    ) -> str:
        """Send over the group that there is; return why that failed, "" if it did not."""
        assert self._group is not None
        limit_s = 2 * self.timeout_s + file.num_bytes / SLOWEST_BYTES_PER_S
        path, num_bytes = file.source(kind)
        self.sent_bytes += num_bytes
        mine = asyncio.ensure_future(self._send_own(self._group, path))
        body = file.to_json() | {"limit_s": limit_s, "kind": kind}
        received = await ask_each(engines, "weights/receive", body, limit_s + ANSWER_S, missed)
        return await mine or _first_error(received)

    async def _send_own(self, group: Group, path: str) -> str:
        try:
            await asyncio.to_thread(send_file, group, path)
        except (RuntimeError, OSError) as error:
            # The others would otherwise wait for the rest.
            group.abort()
            return f"{type(error).__name__}: {error}"
        return ""


def _first_error(answers: dict[str, dict[str, Any]]) -> str:
    return next((f"{url}: {answer['error']}" for url, answer in answers.items() if answer["error"]), "")


def collective_carrier(config: Config, device: torch.device, credentials: Credentials) -> CollectiveCarrier:
    """Return what brings files where `engine.weight_transfer` is "collective"."""
    return CollectiveCarrier(device)
