"""The trainer's side of a transport: what brings a weight file to engines that do not read it where it was written.

Whatever fails here is not the end of a publish: the engine may still find the file itself, and is quarantined
otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from asyncrl.endpoint import route_to
from asyncrl.errors import AsyncRLError
from asyncrl.weights.files import WeightFile
from asyncrl.weights.transport import EngineControl, Transport

ANSWER_S = 30.0
"""For what an engine answers between two decoding steps."""
SLOWEST_BYTES_PER_S = 20e6
"""A transfer that is slower than this has stopped."""
LOOPBACK = "127.0.0.1"


def carry_limit_s(file: WeightFile) -> float:
    """Return how long a version may take to come to the engines."""
    return ANSWER_S + file.num_bytes / SLOWEST_BYTES_PER_S


def advertised(urls: Sequence[str]) -> str:
    """Return the address under which all engines reach this process: loopback only if all are on this machine."""
    hosts = [urlsplit(url).hostname or LOOPBACK for url in urls]
    return next((found for host in hosts if not (found := route_to(host)).startswith("127.")), LOOPBACK)


class Carrier(Protocol):
    """Brings weight files to engines that do not read them where they were written.

    An engine that is asked for `weights/expect` makes room for a file and answers with its path, on the engine's
    machine. Prepare verifies what is there by the file's checksum, so a carrier only has to bring the bytes.
    """

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """Return the engines that did not get `file`, with the reason. Raises no error of an engine."""

    def close(self) -> None:
        """Give up what is kept from one version to the next."""


class Carried(Transport):
    """A carrier brings the files.

    Once for all engines that have one folder of weights, so once a machine: the others share what the first one got.

    They are written all the same: from them an engine that starts late or was lost on the way catches up, and the
    trainer checks what the version before has sampled. With the tensors in host memory for the checksum anyway, that is
    one more copy.
    """

    brings = True

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """See `Transport`."""
        missed: dict[str, str] = {}
        lacking = await self._lacking(file, engines, missed)
        first, others = _one_a_place(lacking)
        missed |= await self._bring(file, first)
        # What the first one of a machine did not get is brought to each of the others.
        left = await self._lacking(file, others, missed)
        return missed | await self._bring(file, [engine for engine, _ in left])

    async def _bring(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        return await self.carrier.carry(file, engines) if engines else {}

    async def _lacking(
        self, file: WeightFile, engines: Sequence[EngineControl], missed: dict[str, str]
    ) -> list[tuple[EngineControl, str]]:
        """Return the engines that have not got the file from another one of their machine, and their places."""
        answers = await ask_each(engines, "weights/adopt", file.to_json(), carry_limit_s(file), missed)
        return [
            (engine, answers[engine.url]["place"])
            for engine in engines
            if engine.url in answers and not answers[engine.url]["adopted"]
        ]

    def close(self) -> None:
        """See `Transport`."""
        self.carrier.close()


def _one_a_place(
    engines: Sequence[tuple[EngineControl, str]],
) -> tuple[list[EngineControl], list[EngineControl]]:
    """Return the first engine of each place, and all others. One without a folder of weights has no place."""
    first: dict[str, EngineControl] = {}
    for engine, place in engines:
        first.setdefault(place, engine)
    chosen = list(first.values())
    return chosen, [engine for engine, _ in engines if engine not in chosen]


async def ask_each(
    engines: Sequence[EngineControl],
    path: str,
    body: dict[str, Any] | Sequence[dict[str, Any]],
    timeout_s: float,
    missed: dict[str, str],
) -> dict[str, dict[str, Any]]:
    """Ask all engines at once, by one body or one each; return the answers, and add those that fail to `missed`."""
    bodies = [body] * len(engines) if isinstance(body, dict) else body
    calls: list[Coroutine[Any, Any, dict[str, Any]]] = [
        engine.request(path, one, timeout_s) for engine, one in zip(engines, bodies, strict=True)
    ]
    answers: dict[str, dict[str, Any]] = {}
    for engine, answer in zip(engines, await asyncio.gather(*calls, return_exceptions=True), strict=True):
        if isinstance(answer, AsyncRLError):
            missed[engine.url] = f"{path}: {answer}"
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[engine.url] = answer
    return answers
