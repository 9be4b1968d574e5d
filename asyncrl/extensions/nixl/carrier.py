"""Carries a weight file to engines by NIXL: the trainer's first rank lends its memory, and each engine reads it.

What tells an engine where to read, NIXL's metadata and an address, goes to it over its authenticated routes. Once all
have read, or been missed, the memory is lent no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncrl.errors import AsyncRLError
from asyncrl.extensions.nixl.agent import Agent, check_nixl
from asyncrl.weights.carrier import (
    ANSWER_S,
    LOOPBACK,
    advertised,
    ask_each,
    carry_limit_s,
)
from asyncrl.weights.files import WeightFile
from asyncrl.weights.transport import EngineControl

if TYPE_CHECKING:
    import torch

    from asyncrl.config import Config
    from asyncrl.credentials import Credentials

STALL_S = 30.0


class NixlCarrier:
    """Lends files. stall_s: what an engine waits for each piece before it gives up."""

    def __init__(self, stall_s: float = STALL_S) -> None:
        self.stall_s = stall_s
        self.lent_bytes = 0
        """What engines were asked to read."""
        self._one_at_a_time = asyncio.Lock()

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """Have `engines` read `file`, or its delta; return those that did not get it, with the reason."""
        missed: dict[str, str] = {}
        async with self._one_at_a_time:
            bases = await ask_each(engines, "weights/base", file.to_json(), ANSWER_S, missed)
            kinds = {url: file.kind_for(answer["base"]) for url, answer in bases.items()}
            left = [engine for engine in engines if engine.url in kinds]
            if not left:
                return missed
            try:
                same_machine = await asyncio.to_thread(advertised, list(kinds)) == LOOPBACK
                agent = await asyncio.to_thread(Agent, same_machine)
            except AsyncRLError as error:
                return missed | dict.fromkeys(kinds, str(error))
            try:
                return missed | await self._lend(agent, file, left, kinds)
            except AsyncRLError as error:
                return missed | dict.fromkeys(kinds, str(error))
            finally:
                # Engines that still read find the connection closed.
                agent.close()

    async def _lend(
        self, agent: Agent, file: WeightFile, engines: Sequence[EngineControl], kinds: dict[str, str]
    ) -> dict[str, str]:
        paths = {kind: file.source(kind)[0] for kind in set(kinds.values())}
        lent = await asyncio.to_thread(agent.lend, paths)
        limit_s = carry_limit_s(file)
        bodies = []
        for engine in engines:
            kind = kinds[engine.url]
            self.lent_bytes += lent[kind].num_bytes
            order = {"kind": kind, "lent": lent[kind].to_json(), "limit_s": limit_s, "stall_s": self.stall_s}
            bodies.append(file.to_json() | {"order": order})
        missed: dict[str, str] = {}
        answers = await ask_each(engines, "weights/read", bodies, limit_s + self.stall_s + ANSWER_S, missed)
        return missed | {url: answer["error"] for url, answer in answers.items() if answer["error"]}

    def close(self) -> None:
        """Nothing is kept from one version to the next."""


def nixl_carrier(config: Config, device: torch.device, credentials: Credentials) -> NixlCarrier:
    """Return what brings files where `engine.weight_transfer` is "nixl". Raises `ConfigError` without the library."""
    check_nixl()
    return NixlCarrier()
