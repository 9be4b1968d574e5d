"""Carries a weight file to engines over HTTP: the trainer sends it once, and engines fetch it from each other.

The engines form a tree under the trainer. Each fetches chunk by chunk from the one above it, which passes on what it
has while the rest still comes, and from those further up where that one dies or hangs. An engine that was away fetches
the version from those that have it. All the trainer says goes to the engines' own addresses, so they need no other
way to it than the one back to the address that it listens on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from asyncrl.errors import AsyncRLError
from asyncrl.extensions.http_weights.fetches import FetchOrder
from asyncrl.weights.carrier import ANSWER_S, ask_each
from asyncrl.weights.chunks import CHUNK_BYTES, WHOLE, Chunks, chunks_of
from asyncrl.weights.files import WeightFile
from asyncrl.weights.transport import EngineControl

log = logging.getLogger("asyncrl.weights")

FANOUT = 2
"""Engines that one engine sends to. The trainer sends to one."""
HELPERS = 2
"""Engines of those that have a version which one that was away is told."""
STALL_S = 15.0
SLOWEST_BYTES_PER_S = 64 * 1024
"""A fetch that is slower than this in the mean has stopped."""
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 1.0


class WeightSource(Protocol):
    """Where the trainer's own files are fetched."""

    def offer(self, file: WeightFile, engines: Sequence[str]) -> str:
        """Serve a version; return the base address under which all these engines reach it. Raises AsyncRLError."""

    def close(self) -> None:
        """Serve nothing any more."""


class HttpCarrier:
    """Has engines fetch files. stall_s: how long one waits for a source that gives nothing before it takes the next."""

    def __init__(
        self, source: WeightSource, stall_s: float = STALL_S, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self.source = source
        self.stall_s = stall_s
        self.chunk_bytes = chunk_bytes
        self._holders: list[str] = []
        """Engines that have the newest version that was carried."""
        self._newest = ""
        self._one_at_a_time = asyncio.Lock()

    async def carry(self, file: WeightFile, engines: Sequence[EngineControl]) -> dict[str, str]:
        """Have `engines` fetch `file`, or its delta; return those that did not get it, with the reason."""
        missed: dict[str, str] = {}
        async with self._one_at_a_time:
            if self._newest != file.checksum:
                self._newest, self._holders = file.checksum, []
            try:
                trainer = await asyncio.to_thread(self.source.offer, file, [one.url for one in engines])
            except AsyncRLError as error:
                return {engine.url: str(error) for engine in engines}
            orders = await self._orders(file, engines, trainer, missed)
            left = [engine for engine in engines if engine.url in orders]
            bodies = [file.to_json() | {"order": orders[engine.url].to_json()} for engine in left]
            # A fetch that is given up for this one may be waiting for its source.
            begun = await ask_each(left, "weights/fetch", bodies, ANSWER_S + self.stall_s, missed)
            left = [engine for engine in left if engine.url in begun]
            reasons = await asyncio.gather(
                *(self._wait(engine, file, orders[engine.url].chunks) for engine in left)
            )
            for engine, reason in zip(left, reasons, strict=True):
                if reason:
                    missed[engine.url] = reason
                elif engine.url not in self._holders:
                    self._holders.append(engine.url)
        return missed

    def close(self) -> None:
        """Serve nothing any more."""
        self.source.close()

    async def _orders(
        self, file: WeightFile, engines: Sequence[EngineControl], trainer: str, missed: dict[str, str]
    ) -> dict[str, FetchOrder]:
        """Return what each engine that answers is to fetch, and from whom."""
        bases = await ask_each(engines, "weights/base", file.to_json(), ANSWER_S, missed)
        kinds = {url: file.kind_for(answer["base"]) for url, answer in bases.items()}
        orders: dict[str, FetchOrder] = {}
        for kind in (*file.forms, WHOLE):
            urls = [url for url in bases if kinds[url] == kind]
            if not urls:
                continue
            path, _ = file.source(kind)
            chunks = await asyncio.to_thread(chunks_of, path, self.chunk_bytes)
            holders = [url for url in self._holders if url not in urls] if kind == WHOLE else []
            above = tree(urls)
            for number, url in enumerate(urls):
                turned = (
                    holders[number % len(holders) :] + holders[: number % len(holders)] if holders else []
                )
                sources = (*above[number], *turned[:HELPERS], trainer)
                orders[url] = FetchOrder(kind, chunks, sources, self.stall_s)
        return orders

    async def _wait(self, engine: EngineControl, file: WeightFile, chunks: Chunks) -> str:
        """Wait until an engine has what it fetches; return why it has not, "" if it has."""
        body = replace(file, forms={}).to_json()
        deadline = time.monotonic() + ANSWER_S + self.stall_s + chunks.num_bytes / SLOWEST_BYTES_PER_S
        pause_s = FIRST_LOOK_S
        while True:
            try:
                found = await engine.request("weights/fetched", body, ANSWER_S)
            except AsyncRLError as error:
                return str(error)
            if found["ended"]:
                return str(found["error"])
            if time.monotonic() >= deadline:
                return f"{found['received_bytes']} of {chunks.num_bytes} bytes came in the time allowed"
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)


def tree(urls: Sequence[str]) -> list[list[str]]:
    """Return for each engine those above it, the nearest first; the first engine has none."""
    above: list[list[str]] = []
    for number in range(len(urls)):
        parent = (number - 1) // FANOUT
        above.append([] if number == 0 else [urls[parent], *above[parent]])
    return above
