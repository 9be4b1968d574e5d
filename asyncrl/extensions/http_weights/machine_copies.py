"""Copies of weight files on those machines of an engine that its server is not on.

    server's machine   a transport brings the file; it is verified, and offered to the engine's other machines
    each other one     the first worker fetches it over HTTP, in chunks, and verifies it; all workers load that copy

It is the way of every transport but one whose group brings the bytes to all machines: there a copy is only verified,
and fetched where it is damaged.
"""

from __future__ import annotations

import os

from asyncrl.credentials import authorization, bearer
from asyncrl.errors import InputError, UnavailableError
from asyncrl.extensions.http_weights.fetch import Fetch
from asyncrl.extensions.http_weights.fetches import bytes_route
from asyncrl.weights.chunks import WHOLE, Chunks
from asyncrl.weights.files import WeightFile, verify_weights
from asyncrl.weights.staging import Staging

STALL_S = 15.0
SLOWEST_BYTES_PER_S = 20e6
"""A fetch that is slower than this in the mean has stopped."""


def copy_limit_s(file: WeightFile) -> float:
    """Return how long the other machines may take for their copies."""
    return 2 * STALL_S + file.num_bytes / SLOWEST_BYTES_PER_S


def fetch_copy(file: WeightFile, chunks: Chunks, server: str, copies: Staging) -> None:
    """Have a verified copy of `file` among `copies`, of the server's unless there is one.

    server: address of the engine. Raises `InputError`, `UnavailableError`.
    """
    if (found := copies.local(file)) is not None:
        try:
            verify_weights(found)
            return
        except InputError:
            copies.drop(file)
    path, resume = copies.fetch_room(file, WHOLE, chunks.num_bytes)
    headers = authorization(bearer(None, "weights"))
    fetch = Fetch(chunks, path, [server], bytes_route(file, WHOLE), headers, STALL_S, resume)
    if not fetch.wait(copy_limit_s(file)):
        fetch.cancel()
        fetch.wait(STALL_S)
    if not fetch.complete:
        raise UnavailableError(fetch.error or "the copy did not come in the time allowed")
    copy = copies.path(file)
    os.replace(path, copy)
    found = copies.local(file)
    assert found is not None
    verify_weights(found)
