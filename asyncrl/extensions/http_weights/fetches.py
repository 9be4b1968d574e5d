"""An engine's side of weights over HTTP: what it fetches in the background, and what it offers to other engines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import InputError
from asyncrl.extensions.http_weights.fetch import Fetch
from asyncrl.extensions.http_weights.offered import BYTES_ROUTE, Offered
from asyncrl.weights.chunks import WHOLE, Chunks
from asyncrl.weights.files import WeightFile
from asyncrl.weights.staging import Staging


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """What the trainer tells an engine to fetch, and from whom."""

    kind: str
    """`chunks.WHOLE`, or one of `chunks.short_kinds`."""
    chunks: Chunks
    sources: tuple[str, ...]
    """Base addresses, preferred first."""
    stall_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fetch_order_from_json(body: Mapping[str, Any]) -> FetchOrder:
    """Read a `FetchOrder` back. Raises KeyError, TypeError, ValueError."""
    sources = tuple(str(url) for url in body["sources"])
    if not sources:
        raise ValueError("sources: must not be empty")
    return FetchOrder(str(body["kind"]), Chunks(**body["chunks"]), sources, float(body["stall_s"]))


def bytes_route(file: WeightFile, kind: str) -> str:
    """Return the path at which a version's file, or its delta, is offered."""
    return BYTES_ROUTE.format(epoch=file.epoch, version=file.version, kind=kind)


class Fetches:
    """One version at a time. staging: where it goes. headers: of requests to sources."""

    def __init__(self, staging: Staging, headers: Mapping[str, str]) -> None:
        self._staging = staging
        self._headers = headers
        self._file: WeightFile | None = None
        self._order: FetchOrder | None = None
        self._fetch: Fetch | None = None
        self._place = Path()

    async def begin(self, file: WeightFile, order: FetchOrder) -> None:
        """Fetch a version in the background, unless that goes on already. Raises `InputError`."""
        if self._goes_on(file, order):
            return
        await self._cancel()
        if order.kind == WHOLE:
            self._staging.drop_short(file)
        path, resume = await asyncio.to_thread(
            self._staging.fetch_room, file, order.kind, order.chunks.num_bytes
        )
        self._file, self._order = file, order
        self._place = self._staging.complete_path(file, order.kind)
        self._fetch = Fetch(
            order.chunks, path, order.sources, bytes_route(file, order.kind), self._headers, order.stall_s, resume
        )  # fmt: skip

    async def progress(self, file: WeightFile) -> dict[str, Any]:
        """Return `{received_bytes, ended, error}` of the version. Raises `InputError` if another is fetched."""
        if self._fetch is None or not self._is_of(file):
            raise InputError(f"version {file.version}, epoch {file.epoch}: is not being fetched")
        fetch = self._fetch
        if fetch.complete and not self._place.is_file():
            # Under both names, since somebody may be about to open it by the first one.
            await asyncio.to_thread(os.link, fetch.path, self._place)
        return {
            "received_bytes": fetch.received_bytes, "fetched_bytes": fetch.fetched_bytes,
            "ended": fetch.ended, "error": fetch.error,
        }  # fmt: skip

    def find(self, epoch: int, version: int, kind: str) -> Offered | None:
        """Return what there is of a version that is, or was last, fetched."""
        fetch, file, order = self._fetch, self._file, self._order
        if fetch is None or file is None or order is None:
            return None
        if (file.epoch, file.version, order.kind) != (epoch, version, kind):
            return None
        path = self._place if self._place.is_file() else fetch.path
        return Offered(path, fetch.has, lambda: fetch.received_bytes) if path.is_file() else None

    def _is_of(self, file: WeightFile) -> bool:
        return self._file is not None and (self._file.epoch, self._file.version, self._file.checksum) == (
            file.epoch, file.version, file.checksum,
        )  # fmt: skip

    def _goes_on(self, file: WeightFile, order: FetchOrder) -> bool:
        if self._fetch is None or self._order is None or not self._is_of(file):
            return False
        same = (self._order.kind, self._order.chunks) == (order.kind, order.chunks)
        return same and not self._fetch.ended

    async def _cancel(self) -> None:
        if self._fetch is not None:
            self._fetch.cancel()
            # What it fetches may be what the next one goes on with.
            await asyncio.to_thread(self._fetch.wait, self._fetch.stall_s)
