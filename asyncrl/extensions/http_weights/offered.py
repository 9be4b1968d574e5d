"""What a process offers of weight files over HTTP: ranges of bytes, of a file that may still be arriving.

The trainer and every engine answer the same route, so an engine fetches from whichever of them has what it lacks.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import FileResponse, JSONResponse
from starlette.types import Receive, Scope, Send

BYTES_ROUTE = "/asyncrl/v1/weights/bytes/{epoch}/{version}/{kind}"
_RANGE = re.compile(rb"bytes=(\d+)-(\d+)")
HOLD_S = 1.0
"""How long a request waits for bytes that have not arrived yet."""
LOOK_S = 0.02
READ_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Offered:
    """A file of which some bytes may be missing."""

    path: Path
    has: Callable[[int, int], bool] = lambda start, stop: True
    """Whether the bytes from the first number to the second are there, and checked."""
    received_bytes: Callable[[], int] = lambda: 0
    """By which others see that more of it arrives."""


class _Range(FileResponse):
    chunk_size = READ_BYTES


async def send_range(find: Callable[[], Offered | None], scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a GET for one range: 206 with it, or 503 and how much has arrived if it is not there in a moment."""
    header = next((value for name, value in scope["headers"] if name == b"range"), b"")
    wanted = _RANGE.fullmatch(header)
    if wanted is None or scope["method"] != "GET":
        refusal = JSONResponse({"error": "GET with one range, bytes=FIRST-LAST, is needed"}, 400)
        return await refusal(scope, receive, send)
    start, stop = int(wanted[1]), int(wanted[2]) + 1
    deadline = time.monotonic() + HOLD_S
    while (offered := find()) is None or not offered.has(start, stop):
        if time.monotonic() >= deadline:
            received = offered.received_bytes() if offered is not None else 0
            return await JSONResponse({"received_bytes": received}, 503)(scope, receive, send)
        await asyncio.sleep(LOOK_S)
    await _Range(offered.path, media_type="application/octet-stream")(scope, receive, send)
